"""Environment servers that speak the real protocols on loopback, and an agent without a model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from evolution.rollout.engine import Generation
from tests.kit.evolution.plain_engine import PlainEngine

COLOURS = ("red", "green", "blue")


class Colour:
    """Say the colour of the task: 0.25 for each wrong try's politeness, 1 for the right one."""

    def __init__(self, seed: int) -> None:
        self.wanted = COLOURS[seed % 3]
        self.score = 0.0

    def see(self) -> str:
        return f"say {self.wanted}"

    def step(self, action: str) -> tuple[str, float, bool]:
        right = action == self.wanted
        reward = 1.0 if right else 0.0
        self.score += reward
        return ("well said" if right else self.see()), reward, right


class Engine(PlainEngine):
    """Plays by a function from the conversation's text to the next action."""

    context_limit = 1_000_000
    most_at_once = 1_000_000
    adapter_version = "scripted"

    def __init__(self, act: Callable[[str], str]) -> None:
        self._act = act
        self.chat = SimpleNamespace(
            turn_end_id=0,
            opening=lambda instruction, seen, _: _ids(f"{instruction}\n{seen}\n"),
            next_turn=lambda seen: _ids(f"\n{seen}\n"),
            parse_action=lambda ids: "".join(map(chr, ids)),
        )

    def generate(self, prompts, sampling):
        del sampling
        answers = [self._act("".join(map(chr, prompt.token_ids))) for prompt in prompts]
        return [
            Generation(token_ids=tuple(_ids(a)), logprobs=(0.0,) * len(a), ended=True)
            for a in answers
        ]


def obedient(text: str) -> str:
    """Say what was last asked for."""
    return text.rpartition("say ")[2].split()[0]


def begin_and_step(environment, task: int, action: str) -> None:
    environment.reset(task)
    environment.step(action)


def _ids(text: str) -> list[int]:
    return list(map(ord, text))


class OpenEnvServer:
    """``/ws`` of OpenEnv 0.10.0 with one ``Colour`` a connection.

    ``faults`` maps a message kind and a seed (None: any) to what is sent instead of the answer: a
    string or bytes as they are, or a function of the connection.
    """

    def __init__(self) -> None:
        self.faults: dict[tuple[str, int | None], object] = {}
        self.received: list[dict] = []
        self.opened = self.closed = 0
        self.release = threading.Event()
        self._server = serve(self._session, "127.0.0.1", 0)
        self.port = self._server.socket.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}/ws"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()

    def hang(self, connection: ServerConnection) -> None:
        del connection
        self.release.wait(100)

    def all_closed(self, *, within_s: float = 60.0) -> bool:
        """Whether every session has ended: a connection's thread ends after its client's call."""
        deadline = time.monotonic() + within_s
        while self.closed < self.opened and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.closed == self.opened

    def _session(self, connection: ServerConnection) -> None:
        self.opened += 1
        game, seed = None, None
        try:
            for raw in connection:
                message = json.loads(raw)
                self.received.append(message)
                kind, data = message["type"], message.get("data", {})
                if kind == "close":
                    break
                if kind == "reset":
                    seed = data["seed"]
                    game = Colour(seed)
                fault = self.faults.get((kind, seed), self.faults.get((kind, None)))
                if callable(fault):
                    fault(connection)
                elif fault is not None:
                    connection.send(fault)
                elif kind == "reset":
                    connection.send(observation(game.see(), None, done=False))
                else:
                    connection.send(observation(*game.step(data["message"])))
        except ConnectionClosed:
            pass
        finally:
            self.closed += 1


def observation(text: object, reward: object, done: object) -> str:
    inner = {"text": text, "metadata": {}}
    data = {"observation": inner, "reward": reward, "done": done}
    return json.dumps({"type": "observation", "data": data})


@contextmanager
def openenv_server() -> Iterator[OpenEnvServer]:
    server = OpenEnvServer()
    try:
        yield server
    finally:
        server.stop()


class AgentGymServer:
    """The HTTP routes of AgentGym's servers, in one of their dialects.

    ``faults`` maps a route to a function of the handler that answers instead.
    """

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.faults: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.games: dict[int, Colour | None] = {}
        self.requests: list[tuple[str, dict]] = []
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                body = json.loads(self.rfile.read(length))
                route = self.path.strip("/")
                outer.requests.append((route, body))
                fault = outer.faults.get(route)
                if fault is not None:
                    fault(self)
                    return
                reply(self, json.dumps(outer.answer(route, body)).encode())

            def log_message(self, *args: object) -> None:
                del args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, route: str, body: dict) -> object:  # noqa: PLR0911  # one for each route
        webshop = self.dialect == "webshop"
        if route == "create":
            number = len(self.games) + 7
            self.games[number] = None
            return number if webshop else {"id": number}
        number = body["env_idx" if webshop else "id"]
        if number not in self.games:
            return {"error": f"The id {number} is not valid."}
        if route == "close":
            del self.games[number]
            return {"closed": True}
        if route == "reset":
            task = {"webshop": "session_id", "maze": "game", "wordle": "seed"}.get(
                self.dialect, "data_idx"
            )
            game = self.games[number] = Colour(body[task])
            if webshop:
                return [game.see(), None]
            first = {"observation": game.see()}
            return first | (
                {"reward": 0.0, "score": 0.0, "done": False} if task == "data_idx" else {}
            )
        game = self.games[number]
        seen, reward, done = game.step(body["action"])
        if webshop:
            return {"state": seen, "reward": reward, "done": done, "info": None}
        answer = {"observation": seen, "reward": reward, "done": done}
        # BabyAI's figure adds up, and its `reward` says something else.
        return answer | ({"score": game.score, "reward": -5.0} if self.dialect == "babyai" else {})


def reply(
    handler: BaseHTTPRequestHandler, content: bytes, status: int = 200, **headers: str
) -> None:
    handler.send_response(status)
    handler.send_header("content-length", str(len(content)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content)


@contextmanager
def agentgym_server(dialect: str) -> Iterator[AgentGymServer]:
    server = AgentGymServer(dialect)
    try:
        yield server
    finally:
        server.stop()
