"""The rollout engine that runs a Hugging Face causal LM in this process.

Invariants:

1. Loading the same tensors twice gives the same bits, whatever was loaded before. In float32 the
   adapter is merged into this engine's own copy of the weights, in 16 bits it stands beside them
   (``evolution/model/adapted.py``).
2. One key/value cache holds the whole batch across turns. Conversations that no longer appear are
   dropped from it, others may take their rows; the last sampled token of a turn joins the next
   chunk. A prompt that is no continuation of what the cache holds under its key begins with an
   empty row: it can cost time, never correctness.
3. Where memory runs out the batch is halved, for as long as this engine lives (a run) or until
   whoever plays takes that back (``most_at_once``; for the next task, where units are protected):
   prompts are answered in batches of that size, one after the other, each fed anew, until whoever
   plays has no more than that at once. What was drawn is drawn again, the same. One conversation
   alone that does not fit is an error that says what to do.
4. What conversations that begin together have alike, a task's prompt or an instruction and its
   example turns, is computed once and copied (``_opened``).

Covered: full-attention models that transformers can run with scaled-dot-product attention, on
a CPU or one GPU.
Not covered: sliding-window attention (the explicit mask would widen it), quantised bases.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evolution.errors import (
    AdapterLoadError,
    AdapterMismatchError,
    EngineMemoryError,
    RolloutError,
)
from evolution.model.adapted import adapt
from evolution.model.allocator import give_back
from evolution.model.causal_lm import load_base, load_tokenizer
from evolution.model.lora import adapted_linears, split_name
from evolution.rollout.conversation import ChatFormat
from evolution.rollout.engine import Generation, Prompt, RolloutEngine, Sampling
from evolution.rollout.grouped_attention import share_heads
from evolution.rollout.kv_cache import RaggedCache
from evolution.rollout.sampling import draw, uniforms
from federation.adapter.value_head import without_head
from ops.logs.logger import get_logger

__all__ = ["HfEngine", "device_of"]

_PASS_COST = 128
"""Tokens that take as long as a forward pass needs to get going on a CPU, with the small base."""
_GPU_PASS_COST = 4_096
"""The same on a GPU: of the order of what it computes while a pass is launched; not measured."""


_TOO_LARGE = (
    "memory does not hold one conversation of {tokens} tokens beside the model: lower the plan's "
    "max_sequence_tokens, play with [rollout] workers = 1, or give the silo more memory"
)
_CPU_ALLOCATOR = "can't allocate memory"
"""What torch's allocator on a CPU says in a RuntimeError that has no type of its own."""

_log = get_logger(__name__)


class HfEngine(RolloutEngine):
    """See the module."""

    def __init__(
        self,
        base_dir: str | Path,
        *,
        alpha: float = 16.0,
        dtype: str = "float32",
        threads: int = 1,
        device: str = "cpu",
        worker: int = 0,
    ) -> None:
        """Load the base model on ``cpu``, ``cuda``, or ``auto`` for a GPU if there is one.

        Of several GPUs ``worker`` i takes the one with the number i modulo their count. ``threads``
        are torch's, on a CPU.

        Raises:
            RolloutError: There is no such device.
        """
        torch.set_num_threads(threads)
        self._device = device_of(device, worker=worker, gpus=torch.cuda.device_count())
        self._pass_cost = _PASS_COST if self._device == "cpu" else _GPU_PASS_COST
        self._model: Any = load_base(base_dir, dtype=dtype).to(self._device)
        self._dtype: torch.dtype = self._model.dtype
        if self._device == "cpu":
            share_heads(self._model)
        self._alpha = alpha
        self._linears = adapt(self._model, adapted_linears(self._model))
        self._cache = self._holding(0)
        self._keys: list[int] = []
        self.chat = ChatFormat.from_tokenizer(load_tokenizer(base_dir))
        self.context_limit = int(self._model.config.max_position_embeddings)
        self.adapter_version = ""
        # What reading the weights took lies between them, too small for what comes now.
        give_back()

    @torch.no_grad()
    def load_adapter(self, version: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Play with this adapter from now on.

        Raises:
            AdapterLoadError: A tensor belongs to no linear layer, lacks its partner or has the
                wrong shape.
        """
        factors: dict[str, dict[str, np.ndarray]] = {}
        for name, tensor in without_head(tensors).items():
            try:
                module, factor = split_name(name)
            except AdapterMismatchError as error:
                raise AdapterLoadError(str(error)) from error
            factors.setdefault(module, {})[factor] = tensor
        for module, pair in factors.items():
            linear = self._linears.get(module)
            if linear is None or set(pair) != {"A", "B"}:
                raise AdapterLoadError(f"no complete pair of factors for a linear layer {module!r}")
            A, B = pair["A"], pair["B"]
            if (B.shape[0], A.shape[1]) != linear.shape or B.shape[1] != A.shape[0]:
                raise AdapterLoadError(f"{module}: factors {B.shape}·{A.shape} do not fit")
        for module, linear in self._linears.items():
            if module in factors:
                down, up = (
                    torch.from_numpy(factors[module][f].astype(np.float32)).to(self._device)
                    for f in "AB"
                )
                linear.set_factors(down, up, scale=self._alpha / down.shape[0])
            else:
                linear.clear()
        self._forget()
        # What was trained or played before has left much that is free.
        give_back()
        self.adapter_version = version

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Generation]:
        """Answer each prompt, in order.

        Raises:
            EngineMemoryError: One of them alone is more than memory holds.
        """
        answers: list[Generation] = []
        while len(answers) < len(prompts):
            batch = prompts[len(answers) :][: self.most_at_once]
            try:
                answers += self._generate(batch, sampling)
                continue
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                if len(batch) == 1:
                    raise EngineMemoryError(
                        _TOO_LARGE.format(tokens=len(batch[0].token_ids))
                    ) from None
            # Outside of the handler, whose error holds on to what is to be let go of.
            self._halve(len(batch))
        return answers

    def _halve(self, rows: int) -> None:
        self.most_at_once = rows // 2
        self._forget()
        give_back()
        _log.warning("rollout_batch_halved", episodes=self.most_at_once, device=self._device)

    def _generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Generation]:
        chunks = self._opened(self._align(prompts))
        keys = np.array([prompt.key for prompt in prompts])
        lengths = np.array([len(prompt.token_ids) for prompt in prompts])
        ids: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        ended = [False] * len(prompts)
        for index in range(sampling.max_new_tokens):
            logits_BV = self._forward(chunks)
            uniform_B = uniforms(sampling.seed, keys, lengths + index)
            tokens, values = draw(logits_BV, sampling.temperature, uniform_B)
            # A row that has ended gets an empty chunk, which leaves a hole in its cache.
            chunks = [[] for _ in prompts]
            for row, (token, value) in enumerate(
                zip(tokens.tolist(), values.tolist(), strict=True)
            ):
                if not ended[row]:
                    ids[row].append(token)
                    logprobs[row].append(value)
                    ended[row] = token in self.chat.end_ids
                    if not ended[row]:
                        chunks[row] = [token]
            if all(ended):
                break
        return [
            Generation(token_ids=tuple(i), logprobs=tuple(p), ended=e)
            for i, p, e in zip(ids, logprobs, ended, strict=True)
        ]

    def close(self) -> None:
        """Release the model."""
        self._forget()
        self._model = None
        self._linears = {}

    def _align(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Make the cache's rows those of the prompts; return what is still to be fed."""
        row_of = {key: row for row, key in enumerate(self._keys)}
        rows = [self._continued(row_of.get(prompt.key, -1), prompt) for prompt in prompts]
        if any(row >= 0 for row in rows):
            self._cache.arrange(rows)
        else:
            self._cache = self._holding(len(prompts))
        self._keys = [prompt.key for prompt in prompts]
        return [
            list(prompt.token_ids[len(held) :])
            for prompt, held in zip(prompts, self._cache.tokens, strict=True)
        ]

    def _continued(self, row: int, prompt: Prompt) -> int:
        """The row again where the prompt continues what it holds, else -1."""
        if row < 0:
            return -1
        held = self._cache.tokens[row]
        goes_on = len(held) < len(prompt.token_ids) and list(prompt.token_ids[: len(held)]) == held
        return row if goes_on else -1

    def _opened(self, chunks: list[list[int]]) -> list[list[int]]:
        """Fill rows that are empty with what they have alike; return what is still to be fed.

        Tries at one task have one prompt, and all prompts may open alike. Either is computed once
        where the tokens that need not be computed again outweigh a pass. Nothing is kept for
        another call: which prompts came before must not change what these are answered by.
        """
        empty = [row for row, tokens in enumerate(self._cache.tokens) if not tokens]
        # The last token of a prompt is always fed: its scores are what is asked for.
        prompts = {row: tuple(chunks[row][:-1]) for row in empty}
        distinct = list(dict.fromkeys(prompts.values()))
        shared = list(_shared(distinct)) if len(distinct) > 1 else []
        opening, copied = self._holding(1), 0
        if len(shared) * (len(distinct) - 1) > self._pass_cost:
            self._forward([shared], opening)
            copied = len(shared)
        if sum(map(len, prompts.values())) - sum(map(len, distinct)) > self._pass_cost:
            whole = self._holding(len(distinct))
            if copied:
                whole.copy(opening, dict.fromkeys(range(len(distinct)), 0))
            rest = [prompt[copied:] for prompt in distinct]
            if any(rest):
                self._forward(rest, whole)
            place = {prompt: row for row, prompt in enumerate(distinct)}
            self._cache.copy(whole, {row: place[prompt] for row, prompt in prompts.items()})
        elif copied:
            self._cache.copy(opening, dict.fromkeys(empty, 0))
        return [
            chunk[len(self._cache.tokens[row]) :] if row in prompts else chunk
            for row, chunk in enumerate(chunks)
        ]

    def _forward(
        self, chunks: Sequence[Sequence[int]], cache: RaggedCache | None = None
    ) -> torch.Tensor:
        logits_BV: torch.Tensor | None = None
        cache = self._cache if cache is None else cache
        try:
            for inputs in cache.feed(chunks, pass_cost=self._pass_cost):
                logits_PV: torch.Tensor = self._model(
                    input_ids=inputs.input_ids,
                    position_ids=inputs.position_ids,
                    attention_mask=inputs.attention_mask,
                    past_key_values=cache.layers,
                    use_cache=True,
                    logits_to_keep=1,
                ).logits[:, -1]
                if logits_BV is None:
                    logits_BV = logits_PV.new_zeros(len(chunks), logits_PV.shape[-1])
                logits_BV[inputs.rows] = logits_PV
        except BaseException:
            # The cache names tokens by now that some layers have not seen.
            self._forget()
            raise
        if logits_BV is None:
            raise RolloutError("there is nothing to answer")
        return logits_BV

    def _holding(self, rows: int) -> RaggedCache:
        """A cache of rows that hold nothing."""
        return RaggedCache(rows, device=self._device, dtype=self._dtype)

    def _forget(self) -> None:
        self._cache = self._holding(0)
        self._keys = []


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or _CPU_ALLOCATOR in str(error)


def _shared(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all of them begin with."""
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    return [column[0] for column in columns]


def device_of(name: str, *, worker: int, gpus: int) -> str:
    """The device of a worker, counted from 0, on a machine where torch sees so many GPUs.

    Raises:
        RolloutError: There is no such device.
    """
    if name not in {"auto", "cpu", "cuda"}:
        raise RolloutError(f"rollout.device is {name!r}; known: auto, cpu, cuda")
    if name == "cuda" and not gpus:
        raise RolloutError("rollout.device is cuda, and torch sees no GPU")
    return f"cuda:{worker % gpus}" if name != "cpu" and gpus else "cpu"
