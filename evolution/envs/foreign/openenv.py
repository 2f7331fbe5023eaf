"""``openenv:``, the WebSocket protocol of an OpenEnv server (openenv 0.10.0).

::

    silo                                              server, path /ws
    {"type":"reset","data":{"seed":7}}           ->
                                                 <-   {"type":"observation","data":
                                                        {"observation":{…},"reward":null,"done":false}}
    {"type":"step","data":{"message":"go"}}      ->
                                                 <-   the same, or {"type":"error","data":{…}}
    {"type":"close"}                             ->   and the connection is closed

Invariants:

1. One connection holds one episode: it is opened by ``reset`` and closed when the episode ends,
   fails or is given up, so that nothing of one task reaches the next.
2. A redirect is refused, no proxy is asked and nothing is compressed: only the operator's address
   is spoken to, and a small message cannot become a large one.

Covered: loopback and TLS, ``timeout_s`` for each whole answer, ``max_message_bytes``, error
replies, hang-ups. Not covered: the server's HTTP routes (``/reset`` and ``/step`` build a fresh
environment for each request and cannot hold an episode); client certificates; a server that ignores
the seed, which then has other tasks than the plan thinks; one that answers without ever reading.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus, PayloadTooBig, WebSocketException
from websockets.sync.client import ClientConnection, connect

from evolution.envs.foreign.foreign import Breaker, ForeignEnvironment, Turn
from evolution.envs.foreign.reply import field_of, json_of
from evolution.envs.foreign.spec import ACTION, OpenEnvSpec
from evolution.errors import (
    ForeignEnvironmentError,
    ForeignRefusalError,
    ForeignReplyError,
    ForeignTimeoutError,
    ForeignUnreachableError,
)

__all__ = ["OpenEnvEnvironment"]

_CLOSE_S = 1.0
"""A server has this long to say goodbye."""


class _Connection(ClientConnection):
    """A connection that follows no redirect."""

    def handshake(self, *args: Any, **kwargs: Any) -> None:
        """Open the WebSocket.

        Raises:
            ForeignUnreachableError: The server answered with another status than 101.
        """
        try:
            super().handshake(*args, **kwargs)
        except InvalidStatus as error:
            status = error.response.status_code
            raise ForeignUnreachableError(f"the server answered with status {status}") from error


class OpenEnvEnvironment(ForeignEnvironment[OpenEnvSpec]):
    """See the module."""

    waits = True

    def __init__(self, spec: OpenEnvSpec, breaker: Breaker) -> None:
        super().__init__(spec, breaker)
        self.observed = spec.observation
        self._held = ExitStack()
        self._connection: ClientConnection | None = None

    def _begin(self, index: int) -> Turn:
        self._end()
        data = {**self._spec.reset, self._spec.task_key: index}
        self._connect()
        # What the first observation is worth, or whether it ends the episode, is not asked.
        return Turn(observation=self._ask("reset", data).observation)

    def _act(self, action: str | int) -> Turn:
        return self._ask("step", _filled(self._spec.action, action))

    def _over(self) -> None:
        self._end()

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                connection.send(json.dumps({"type": "close"}))
        except (OSError, WebSocketException):
            # The server has hung up already, which ends its session as well.
            pass
        finally:
            self._held.close()

    def _connect(self) -> None:
        try:
            self._connection = self._held.enter_context(
                connect(
                    self._spec.url,
                    create_connection=_Connection,
                    open_timeout=self._spec.timeout_s,
                    close_timeout=_CLOSE_S,
                    max_size=self._spec.max_message_bytes,
                    ping_interval=None,
                    compression=None,
                    proxy=None,
                )
            )
        except ForeignEnvironmentError:
            raise
        except TimeoutError as error:
            raise ForeignTimeoutError("the server did not accept the connection") from error
        except (OSError, WebSocketException, ValueError) as error:
            raise ForeignUnreachableError("the server cannot be reached") from error

    def _ask(self, kind: str, data: dict[str, Any]) -> Turn:
        reply = json_of(self._exchange(json.dumps({"type": kind, "data": data})))
        if field_of(reply, "type") == "error":
            raise ForeignRefusalError(f"the server answered {kind} with an error")
        if field_of(reply, "type") != "observation":
            raise ForeignReplyError(f"the server answered {kind} with something else")
        data = field_of(reply, "data")
        reward = field_of(data, "reward")
        return Turn(
            observation=field_of(data, "observation"),
            # The protocol's own way to say that a step has no reward.
            reward=0.0 if reward is None else reward,
            terminated=field_of(data, "done"),
        )

    def _exchange(self, message: str) -> str:
        connection = self._connection
        if connection is None:
            raise ForeignUnreachableError("the connection was closed")
        try:
            # A server without room says so and hangs up before it is asked; recv has its words.
            with suppress(ConnectionClosed):
                connection.send(message)
            answer = connection.recv(timeout=self._spec.timeout_s)
        except TimeoutError as error:
            raise ForeignTimeoutError("the server did not answer in time") from error
        except ConnectionClosed as error:
            if isinstance(error.__cause__, PayloadTooBig) or (
                error.sent and error.sent.code == 1009
            ):
                raise ForeignReplyError("the answer is too large") from error
            raise ForeignUnreachableError("the server hung up") from error
        except (OSError, WebSocketException) as error:
            raise ForeignUnreachableError("the connection broke") from error
        if not isinstance(answer, str):
            raise ForeignReplyError("the answer is not text")
        return answer


def _filled(template: Any, action: str | int) -> Any:
    if isinstance(template, dict):
        return {key: _filled(value, action) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [_filled(value, action) for value in template]
    return action if template == ACTION else template
