"""What a crowd of strangers costs a coordinator: a silo's answers, places for others, memory.

A real coordinator process with the usual soft limit of 1,024 open files. One silo is connected and
asks; then connections that say nothing come to one port, all at once, and nobody hangs up on our
side. Measured before, while they are there, and after the coordinator ended them:

- the time of the connected silo's answers, median and worst of 100;
- the first answer on a new connection of a silo, or how it failed;
- resident memory, at last after the minute in which the coordinator gives memory back.

Prints a table and, as its last line, the figures as JSON. Exit code 1 if a silo was kept out by
fewer strangers than the port has places.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from chorale.v1 import round_pb2, round_pb2_grpc
from lab.loopback import LoopbackFederation
from server.rpc.ports import HANDSHAKE_S, MOST_CONNECTIONS
from server.rpc.strangers import EVERY_S
from silo_agent.identity.identity import Identity
from silo_agent.identity.join import join

USUAL_FILES = 1024
ASKED = 100


def answer_s(channel: grpc.Channel) -> float:
    """How long one poll takes."""
    begun = time.perf_counter()
    round_pb2_grpc.RoundServiceStub(channel).Poll(round_pb2.PollRequest(), timeout=10)
    return time.perf_counter() - begun


def new_connection(silo: Identity) -> str:
    """The first answer on a connection of its own, in milliseconds, or the status."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    address, credentials = silo.coordinator_address, silo.channel_credentials()
    with grpc.secure_channel(address, credentials, alone) as channel:
        try:
            return f"{answer_s(channel) * 1e3:.0f}"
        except grpc.RpcError as error:
            found: Any = error
            return str(found.code().name)


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(found.split()[1]) / 1024


@contextlib.contextmanager
def crowd(port: int, count: int) -> Iterator[None]:
    with contextlib.ExitStack() as opened:
        for number in range(count):
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
            if number % 50 == 0:
                time.sleep(0.01)
        time.sleep(1)
        yield


def looked_at(when: str, channel: grpc.Channel, silo: Identity, pid: int) -> dict[str, Any]:
    times = sorted(answer_s(channel) for _ in range(ASKED))
    return {
        "when": when,
        "answer_ms": round(times[ASKED // 2] * 1e3, 2),
        "worst_ms": round(times[-1] * 1e3, 2),
        "new_connection": new_connection(silo),
        "resident_mib": round(resident_mib(pid), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--strangers", type=int, default=1200)
    parser.add_argument("--port", choices=("rounds", "enrolment"), default="enrolment")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        tempfile.TemporaryDirectory() as directory,
        LoopbackFederation(directory=Path(directory)) as federation,
    ):
        federation.found()
        resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL_FILES, hard))
        federation.start_coordinator()
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        pid, data = federation.pid("coordinator"), ("--data", str(federation.data_dir))
        silo = join(
            federation.chorale("invite", "demo", "silo-a", *data)["invite"], Path(directory) / "a"
        )
        # The enrolment port is open while somebody is invited.
        federation.chorale("invite", "demo", "silo-b", *data)
        port = federation.port if options.port == "rounds" else federation.enrol_port
        with grpc.secure_channel(silo.coordinator_address, silo.channel_credentials()) as channel:
            rows = [looked_at("before", channel, silo, pid)]
            with crowd(port, options.strangers):
                rows.append(looked_at(f"{options.strangers} silent", channel, silo, pid))
                time.sleep(HANDSHAKE_S + 2)
                rows.append(looked_at("after their time", channel, silo, pid))
            time.sleep(EVERY_S + 2)
            rows.append(looked_at("a minute later", channel, silo, pid))
    print(f"{'':18}{'answer ms':>10}{'worst ms':>10}{'new, ms':>20}{'resident MiB':>14}")
    for row in rows:
        print(
            f"{row['when']:18}{row['answer_ms']:10}{row['worst_ms']:10}"
            f"{row['new_connection']:>20}{row['resident_mib']:14}"
        )
    print(json.dumps({"port": options.port, "strangers": options.strangers, "rows": rows}))
    bounded = options.port == "enrolment" or options.strangers < MOST_CONNECTIONS
    kept_out = [row for row in rows if not row["new_connection"].isdigit()]
    sys.exit(1 if bounded and kept_out else 0)


if __name__ == "__main__":
    main()
