"""The seam every rollout engine sits behind.

``generate`` is a pure function of its arguments and the loaded adapter: which other conversations
share the batch, and what an engine caches between calls, may not change a result beyond rounding.
Prompts are whole histories; an engine recognises the part it has seen under the same key.

Which engine plays, and with what, is the silo's own choice (``EngineSpec``), never the plan's.

Log-probabilities are those of the behaviour policy, of the distribution that a token was drawn
from: softmax(logits / temperature), and nothing else changes it. No engine offers top-p, top-k or
penalties, and one that plays on a server switches the server's own off. At temperature 0 the policy
takes the likeliest token for certain, so what is recorded is log 1 = 0.

Covered: token-in, token-out generation with log-probabilities. Not covered: streaming.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np

from evolution.rollout.conversation import ChatFormat

__all__ = ["ANY_NUMBER", "EngineSpec", "Generation", "Prompt", "RolloutEngine", "Sampling"]


ANY_NUMBER: Final = 1 << 40


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """What plays a silo's episodes; read from ``[rollout]`` of ``silo.toml``."""

    kind: Literal["hf", "openai"] = "hf"
    """``hf`` runs the model in this process; ``openai`` asks vLLM servers beside it."""
    workers: int = 1
    """``hf``: processes, up to 256, that share the episodes of a round; 1 plays in this process."""
    device: str = "auto"
    """``hf``: ``auto`` takes a GPU if there is one."""
    rollout_batch: int = 64
    """``hf``: the most episodes, up to 4096, that are played at once; fewer where memory asks for
    it."""
    url: str = ""
    """``openai``: the server, on loopback or with TLS, for example ``http://127.0.0.1:8000``."""
    urls: tuple[str, ...] = ()
    """``openai``: several servers instead of ``url``; a conversation's key says whose it is."""
    model: str = ""
    """``openai``: the name under which the server knows the base model."""
    api_key_file: Path | None = None
    """``openai``: file with the server's API key."""
    adapter_dir: Path | None = None
    """``openai``: where adapters are written for the server to load; both read the same path."""
    timeout_s: float = 120.0
    """``openai``: the most seconds of one answer."""
    max_in_flight: int = 64
    """``openai``: the most episodes that are played at once."""

    @property
    def servers(self) -> tuple[str, ...]:
        """``openai``: the servers, one or several."""
        return self.urls or (self.url,)

    @property
    def episodes_at_once(self) -> int:
        """The most that the operator allows."""
        return self.max_in_flight if self.kind == "openai" else self.rollout_batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float
    """0 picks the likeliest token."""
    max_new_tokens: int
    """Longest answer; a longer one is cut off."""
    seed: int
    """With a prompt's key and a token's position it decides every draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One conversation that waits for the agent's answer."""

    key: int
    """Names the conversation across calls."""
    token_ids: Sequence[int]
    """The whole history."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One answer."""

    token_ids: tuple[int, ...]
    """Sampled tokens, with the end token if there was one."""
    logprobs: tuple[float, ...]
    """Their natural-log probabilities under the behaviour policy, at the sampling temperature; 0 at
    temperature 0."""
    ended: bool
    """False if the answer was cut off."""


class RolloutEngine(ABC):
    """A base model with one adapter at a time."""

    chat: ChatFormat
    """The token layout of this engine's tokenizer."""
    context_limit: int
    """Most tokens a conversation may have."""
    most_at_once: int = ANY_NUMBER
    """Conversations that are worth playing together; fewer once memory has run out. Whoever
    plays may set it back."""
    lanes: int = 1
    """How many calls of ``ask`` it works on at a time, each with prompts whose keys are alike
    modulo this number."""
    adapter_version: str
    """What ``load_adapter`` was last given; empty for the bare base model."""

    @abstractmethod
    def load_adapter(self, version: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Play with this adapter from now on; a version is never reused for other tensors.

        The tensors are LoRA factors under their peft names; none plays the bare base model.
        """

    @abstractmethod
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Generation]:
        """Answer each prompt, in order."""

    def ask(self, prompts: Sequence[Prompt], sampling: Sampling) -> Callable[[], list[Generation]]:
        """``generate`` in two halves: what is returned waits for the answers.

        An engine with one lane has nobody who could answer meanwhile, and answers then.
        """
        return partial(self.generate, prompts, sampling)

    @abstractmethod
    def close(self) -> None:
        """Release the model."""
