"""``agentgym:``, the HTTP protocol of AgentGym's environment servers (WooooDyy/AgentGym).

::

    POST /create {}                    -> {"id": 3, …} or, from WebShop, the bare number
    POST /reset  {"id", "data_idx"}    -> {"observation", …} or, from WebShop, [observation, null]
    POST /step   {"id", "action"}      -> {"observation", "reward", "done", …}
    POST /close  {"id"}

Names differ from server to server (``_DIALECTS``), and an error is HTTP 200 with ``{"error": …}``.
BabyAI's figure is ``score``, which adds up over the steps. Invariants:

1. An object creates one environment on the server, plays its episodes in it and closes it; after a
   failure it is closed at once. These servers forget nothing by themselves.
2. Redirects, proxies, compression and cookies are not used: only the operator's address is spoken
   to. ``timeout_s`` is for one whole answer, from connecting to its last byte.

Covered: loopback and TLS, ``max_message_bytes``, error replies, servers without ``/close``. Not
covered: what a daemon that is killed leaves open on the server; other clients of the same server,
who can guess the numbers of its environments.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import httpx2

from evolution.envs.foreign.foreign import Breaker, ForeignEnvironment, Turn
from evolution.envs.foreign.reply import field_of, json_of
from evolution.envs.foreign.spec import AgentGymSpec
from evolution.errors import (
    ForeignRefusalError,
    ForeignReplyError,
    ForeignTimeoutError,
    ForeignUnreachableError,
)

__all__ = ["AgentGymEnvironment"]

_OK = 200
_NO_SUCH_ROUTE = frozenset({404, 405})
_MAX_ID = 2**53


@dataclass(frozen=True, kw_only=True, slots=True)
class _Dialect:
    """What one server calls things."""

    id: str = "id"
    task: str = "data_idx"
    observation: str = "observation"
    reward: str = "reward"


_DIALECTS: MappingProxyType[str, _Dialect] = MappingProxyType(
    {
        "babyai": _Dialect(reward="score"),
        "maze": _Dialect(task="game"),
        "standard": _Dialect(),
        "textcraft": _Dialect(),
        "webshop": _Dialect(id="env_idx", task="session_id", observation="state"),
        "wordle": _Dialect(task="seed"),
    }
)


class _StatusError(ForeignRefusalError):
    """The server answered with another status than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered with status {status}")
        self.status = status


@functools.cache
def _system_authorities() -> ssl.SSLContext:
    """Made once: reading them takes longer than an episode."""
    return ssl.create_default_context()


class _Client:
    """An HTTP client whose time limit is for the whole answer."""

    def __init__(self, spec: AgentGymSpec) -> None:
        self._spec = spec
        # A loop of its own: only a cancelled task stops a server that sends one byte at a time.
        self._runner = asyncio.Runner()
        self._http = httpx2.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            verify=_system_authorities(),
            timeout=spec.timeout_s,
            headers={"accept-encoding": "identity"},
        )

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._runner.run(self._post(f"{self._spec.url}/{path}", body))

    def close(self) -> None:
        try:
            self._runner.run(self._http.aclose())
        finally:
            self._runner.close()

    async def _post(self, url: str, body: dict[str, Any]) -> Any:
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                return json_of(await self._read(url, body))
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise ForeignTimeoutError("the server did not answer in time") from error
        except httpx2.HTTPError as error:
            raise ForeignUnreachableError("the server cannot be reached or hung up") from error

    async def _read(self, url: str, body: dict[str, Any]) -> bytes:
        content = bytearray()
        async with self._http.stream("POST", url, json=body) as reply:
            self._http.cookies.clear()
            if reply.status_code != _OK:
                raise _StatusError(reply.status_code)
            async for part in reply.aiter_raw():
                content += part
                if len(content) > self._spec.max_message_bytes:
                    raise ForeignReplyError("the answer is too large")
        return bytes(content)


class AgentGymEnvironment(ForeignEnvironment[AgentGymSpec]):
    """See the module."""

    waits = True

    def __init__(self, spec: AgentGymSpec, breaker: Breaker) -> None:
        super().__init__(spec, breaker)
        self._names = _DIALECTS[spec.server]
        self._client: _Client | None = None
        self._id: int | None = None

    def _begin(self, index: int) -> Turn:
        if self._id is None:
            self._id = self._create()
        reply = self._ask("reset", {self._names.id: self._id, self._names.task: index})
        if isinstance(reply, list) and reply:
            return Turn(observation=reply[0])
        # WebShop says `state` when it steps and a list when it resets; the others are consistent.
        return Turn(observation=field_of(reply, self._names.observation))

    def _act(self, action: str | int) -> Turn:
        reply = self._ask("step", {self._names.id: self._id, "action": action})
        return Turn(
            observation=field_of(reply, self._names.observation),
            reward=field_of(reply, self._names.reward),
            terminated=field_of(reply, "done"),
        )

    def _end(self) -> None:
        client, self._client = self._client, None
        number, self._id = self._id, None
        if client is None:
            return
        try:
            if number is not None:
                client.post("close", {self._names.id: number})
        except _StatusError as error:
            # Some of these servers have no way to close an environment.
            if error.status not in _NO_SUCH_ROUTE:
                raise
        finally:
            client.close()

    def _create(self) -> int:
        reply = self._ask("create", {})
        number = field_of(reply, "id") if isinstance(reply, dict) else reply
        if type(number) is not int or not 0 <= number < _MAX_ID:
            raise ForeignReplyError("the server's environment has no usable id")
        return number

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        if self._client is None:
            self._client = _Client(self._spec)
        reply = self._client.post(path, body)
        if isinstance(reply, dict) and "error" in reply:
            raise ForeignRefusalError(f"the server answered {path} with an error")
        return reply
