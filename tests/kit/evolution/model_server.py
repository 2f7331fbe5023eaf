"""A model server on loopback: vLLM's endpoints, in front of the engine of this process.

Its log-probabilities are vLLM's: with ``--logprobs-mode processed_logprobs`` those at the sampling
temperature, with ``processed`` switched off those from before it; at temperature 0 the model's own
in either mode.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file

from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.hf import HfEngine

KEY = "key-of-the-test-server-0123456789"
Fault = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Listener

    def do_GET(self) -> None:
        self.meet(None)

    def do_POST(self) -> None:
        self.meet(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def meet(self, body: Any) -> None:
        world = self.server.world
        world.requests.append((self.path, body))
        self.body = body
        faults = world.faults.get(self.path, [])
        if faults:
            (faults.pop(0) if len(faults) > 1 or not world.lasting else faults[0])(self)
        elif self.path != "/health" and self.headers["authorization"] != f"Bearer {world.key}":
            self.say(401, {"error": "Unauthorized"})
        else:
            self.say(*world.answer(self.path, body))

    def say(self, status: int, value: object) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def hang_up(self) -> None:
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        del args


class Listener(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128
    world: ModelServer


class ModelServer:
    """``faults`` maps a path to what is done instead of answering, one entry for each request; with
    ``lasting`` the last entry stays."""

    def __init__(self, base: Path, alpha: float) -> None:
        self.base, self.key = base, KEY
        self.processed = True
        self.faults: dict[str, list[Fault]] = {}
        self.lasting = False
        self.requests: list[tuple[str, Any]] = []
        self.adapters: dict[str, str] = {}
        self.loaded_modes: list[int] = []
        self.release = threading.Event()
        self.under_way = self.most_under_way = 0
        self._engine = HfEngine(base, alpha=alpha)
        self._holds = ""
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._listener = Listener(("127.0.0.1", 0), Handler)
        self._listener.world = self
        self.url = f"http://127.0.0.1:{self._listener.server_port}"
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        self.release.set()
        if self._thread.is_alive():
            self._listener.shutdown()
            self._thread.join()
            self._listener.server_close()

    def asked(self, path: str) -> list[Any]:
        return [body for asked, body in self.requests if asked == path]

    def answer(self, path: str, body: Any) -> tuple[int, object]:
        if path == "/health":
            return 200, b""
        if path == "/v1/models":
            cards = [{"id": "base", "root": str(self.base), "max_model_len": 512}]
            cards += [{"id": n, "root": p, "max_model_len": None} for n, p in self.adapters.items()]
            return 200, {"object": "list", "data": cards}
        if path == "/v1/load_lora_adapter":
            return self.load(body)
        if path == "/v1/unload_lora_adapter":
            if self.adapters.pop(body["lora_name"], None) is None:
                return 404, {"error": {"message": "not found"}}
            return 200, b"Success"
        return self.complete(body)

    def load(self, body: Any) -> tuple[int, object]:
        name, place = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters:
            return 400, {"error": {"message": "already loaded"}}
        config = json.loads((place / "adapter_config.json").read_text())
        assert config["peft_type"] == "LORA"
        self.loaded_modes += [place.stat().st_mode & 0o777]
        self.loaded_modes += sorted(p.stat().st_mode & 0o777 for p in place.iterdir())
        self.adapters[name] = str(place)
        return 200, b"Success"

    def complete(self, body: Any) -> tuple[int, object]:
        if body["model"] not in {"base", *self.adapters}:
            return 404, {"error": {"message": "The model does not exist."}}
        if not 0 <= body["temperature"] <= 2:
            return 400, {"error": {"message": "temperature must be in [0, 2]"}}
        with self._counting:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        with self._lock:
            if self._holds != body["model"]:
                place = self.adapters.get(body["model"])
                file = Path(place or "") / "adapter_model.safetensors"
                self._engine.load_adapter(body["model"], load_file(file) if place else {})
                self._holds = body["model"]
            (found,) = self._engine.generate(
                [Prompt(key=0, token_ids=body["prompt"])],
                Sampling(
                    temperature=body["temperature"],
                    max_new_tokens=body["max_tokens"],
                    seed=body["seed"],
                ),
            )
            tokens = list(found.token_ids)
            scores_TV = self.scores(body["prompt"], tokens, body["temperature"])
        with self._counting:
            self.under_way -= 1
        values = scores_TV.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        shown = [
            {f"token_id:{token}": row[token].item(), f"token_id:{best}": row[best].item()}
            for token, row, best in zip(
                tokens, scores_TV, scores_TV.argmax(-1).tolist(), strict=True
            )
        ]
        return 200, completion(
            body["prompt"], tokens, values, top_logprobs=shown if body["logprobs"] else None
        )

    def scores(self, prompt: list[int], tokens: list[int], temperature: float) -> torch.Tensor:
        ids = torch.tensor([prompt + tokens])
        with torch.inference_mode():
            logits_TV = self._engine._model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        if self.processed and temperature > 0:
            logits_TV = logits_TV / temperature
        return torch.log_softmax(logits_TV, -1)


def completion(
    prompt: object, tokens: object, logprobs: object, *, top_logprobs: object = None
) -> dict[str, Any]:
    choice = {
        "index": 0,
        "token_ids": tokens,
        "prompt_token_ids": prompt,
        "logprobs": {"token_logprobs": logprobs, "top_logprobs": top_logprobs},
        "finish_reason": "stop",
    }
    return {"object": "text_completion", "choices": [choice]}


@contextmanager
def model_server(base: Path, alpha: float) -> Iterator[ModelServer]:
    server = ModelServer(base, alpha)
    try:
        yield server
    finally:
        server.stop()
