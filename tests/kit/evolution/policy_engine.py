"""An engine whose adapters are scripts: the version that is loaded says which one plays."""

from __future__ import annotations

import hashlib

from evolution.diagnose.policies import Held
from evolution.rollout.conversation import ChatFormat
from evolution.rollout.engine import ANY_NUMBER, Generation, RolloutEngine
from tests.kit.evolution.scripted_engine import tokenizer


def chance(prompt, sampling) -> float:
    """A number from 0 to 1 that seed, conversation and length decide, as they do a draw."""
    parts = repr((sampling.seed, prompt.key, len(prompt.token_ids))).encode()
    return int.from_bytes(hashlib.sha256(parts).digest()[:4]) / 2**32


class PolicyEngine(RolloutEngine):
    """Scripts by version: each takes the prompt's text and a number from 0 to 1."""

    context_limit = 100_000
    most_at_once = ANY_NUMBER

    def __init__(self, **scripts):
        self._tokenizer = tokenizer()
        self.chat = ChatFormat.from_tokenizer(self._tokenizer)
        self.scripts = scripts
        self.adapter_version = ""

    def load_adapter(self, version, tensors):
        assert version in self.scripts, version
        self.adapter_version = version

    def generate(self, prompts, sampling):
        script = self.scripts[self.adapter_version]
        found = []
        for prompt in prompts:
            text = self._tokenizer.decode(list(prompt.token_ids))
            said = script(text, chance(prompt, sampling))
            ids = [*self.chat.encode(said), self.chat.turn_end_id]
            zeros = (0.0,) * len(ids)
            found.append(Generation(token_ids=tuple(ids), logprobs=zeros, ended=True))
        return found

    def close(self):
        pass


def held(version: str) -> Held:
    return Held(version=version, tensors={})
