"""A chat endpoint on loopback that answers as it is told, over plain sockets: also what no HTTP is.

A path ``/case/N/v1/chat/completions`` gets the answers of script N in turn, the last one again and
again. An answer is a function that writes to the connection; whoever hangs does so until the
endpoint stops.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.kit.federation.advice import completion, proposal

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Seen:
    """One request."""

    head: str
    body: bytes

    @property
    def path(self):
        return self.head.split(" ")[1]


@dataclass
class HostileEndpoint:
    scripts: dict[str, list[Answer]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"

    def url(self, case=0):
        return f"{self.scheme}://127.0.0.1:{self.port}/case/{case}/v1"

    def bodies(self, case=0):
        return [seen.body for seen in self.seen if seen.path.startswith(f"/case/{case}/")]

    @asynccontextmanager
    async def serving(self, tls=None):
        self.scheme = "https" if tls else "http"
        connections = set()

        async def connected(reader, writer):
            task = asyncio.current_task()
            connections.add(task)
            try:
                await self._answer(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                # The other side has left, or the endpoint stops.
                pass
            finally:
                connections.discard(task)
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in [*connections]:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = next(
            int(line.split(":")[1])
            for line in head.lower().split("\r\n")
            if line.startswith("content-length:")
        )
        seen = Seen(head=head, body=await reader.readexactly(length))
        self.seen.append(seen)
        case = seen.path.split("/")[2]
        script = self.scripts[case]
        count = len(self.bodies(case))
        await script[min(count, len(script)) - 1](writer)


def body(content, *, status="200 OK", headers=""):
    """One whole answer."""

    async def answer(writer):
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-length: {len(content)}\r\n{headers}\r\n".encode()
            + content
        )
        await writer.drain()

    return answer


def good(**changed):
    return body(completion(proposal(**changed)))


def says(content):
    return body(completion(content))


def calls(*given):
    return body(completion(None, calls=given))


def raw(content):
    """These bytes and the end of the connection."""

    async def answer(writer):
        writer.write(content)
        await writer.drain()

    return answer


def redirect(target, status="307 Temporary Redirect"):
    return body(b"", status=status, headers=f"location: {target}\r\n")


async def hang(_writer):
    await asyncio.Event().wait()


async def hang_within(writer):
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{"choices":')
    await writer.drain()
    await asyncio.Event().wait()


async def drip(writer):
    """A byte now and then: no single read ever waits for long."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def drip_head(writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-a: b\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def endless(writer):
    """More than anybody reads."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        await writer.drain()


TRUNCATED = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n" + completion(proposal())[:80])
CUT_CHUNK = raw(b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n40\r\n{"choices"')
HUNG_UP = raw(b"")
NO_HTTP = raw(b"SSH-2.0-OpenSSH_9.6\r\n")
BAD_LENGTH = raw(b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n{}")
TWO_LENGTHS = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}")
LONG_HEAD = raw(b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"b" * 300_000 + b"\r\n\r\n")
SWITCHED = raw(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")
INFORMED = raw(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 200 + b"HTTP/1.1 204 No Content\r\n\r\n")
SMUGGLED = raw(
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"
)


def json_body(value):
    return body(json.dumps(value).encode())
