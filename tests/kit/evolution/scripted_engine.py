"""An engine that says what a test wrote, over a tokenizer that can write anything, and a record of
what any engine was asked and what it answered."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from evolution.rollout.conversation import ChatFormat
from evolution.rollout.engine import ANY_NUMBER, Generation
from tests.kit.evolution.plain_engine import PlainEngine

PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_SYSTEM = PLAIN.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m['role'] not in ('user', 'assistant') %}"
    "{{ raise_exception('no such role') }}{% endif %}",
)
# The shape of Qwen's: tools in the system turn, results in a user's turn.
WITH_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n' }}{% endif %}"
    "{% for t in tools %}{{ t | tojson }}{{ '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m['content'] + '\n</tool_response><|im_end|>\n' }}"
    "{% elif not (tools and loop.first and m['role'] == 'system') %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LOSES_TOOLS_RESULTS = (
    "{% for m in messages %}{% if m['role'] != 'tool' %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer(template: str = PLAIN) -> PreTrainedTokenizerFast:
    """One token for each byte, and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    inner = Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    made.chat_template = template
    return made


class Recorded:
    """Passes everything on to an engine, and keeps it; the first call takes ``first_s`` longer."""

    def __init__(self, engine, *, first_s=0.0):
        self._engine, self._first_s = engine, first_s
        self.calls, self.sizes = [], []
        self.threads = set()

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def ask(self, prompts, sampling):
        return partial(self.generate, prompts, sampling)

    def generate(self, prompts, sampling):
        self.threads.add(threading.get_ident())
        time.sleep(0.0 if self.sizes else self._first_s)
        answers = self._engine.generate(prompts, sampling)
        for prompt, answer in zip(prompts, answers, strict=True):
            self.calls.append((prompt.key, tuple(prompt.token_ids), answer, sampling))
        self.sizes.append(len(prompts))
        return answers


class ScriptedEngine(PlainEngine):
    """Says one text after the other in each conversation; a callable is asked with the prompt."""

    adapter_version = "a" * 64
    context_limit = 100_000
    most_at_once = ANY_NUMBER

    def __init__(self, *script, template=PLAIN, end=True, context_limit=100_000):
        self.chat = ChatFormat.from_tokenizer(tokenizer(template))
        self.script, self.end, self.context_limit = script, end, context_limit
        self.said = {}

    def generate(self, prompts, sampling):
        return [self._one(prompt, sampling) for prompt in prompts]

    def _one(self, prompt, sampling):
        number = self.said.get(prompt.key, 0)
        self.said[prompt.key] = number + 1
        text = self.script[min(number, len(self.script) - 1)]
        if callable(text):
            text = text(self.chat._tokenizer.decode(list(prompt.token_ids)))
        ids = self.chat.encode(text) + ([self.chat.turn_end_id] if self.end else [])
        cut = ids[: sampling.max_new_tokens]
        return Generation(
            token_ids=tuple(cut),
            logprobs=tuple(-0.5 - i / 1024 for i in range(len(cut))),
            ended=self.end and len(cut) == len(ids),
        )


def asker(engine):
    """What a session asks, answered on the spot."""

    def ask(prompt, sampling):
        answer = Future()
        answer.set_result(engine.generate([prompt], sampling)[0])
        return answer

    return ask


def five_fields(trajectory):
    """What is trained on, as the field has it."""
    first = len(trajectory.steps[0].context_ids)
    ids, mask, values = trajectory.token_ids, trajectory.agent_mask, trajectory.logprobs
    return {
        "prompt_ids": ids[:first],
        "response_ids": ids[first:],
        "loss_mask": tuple(map(int, mask[first:])),
        "response_logprobs": values[first:],
        "reward": trajectory.reward,
    }


def recorded_fields(calls, reward):
    """The same, made of nothing but what an engine was asked and answered in one conversation."""
    (_, prompt, _, _), *_ = calls
    ids, mask, values = [], [], []
    for _, asked, answer, _ in calls:
        seen = [*prompt, *ids]
        assert list(asked[: len(seen)]) == seen, "the engine saw another history than it had made"
        between = asked[len(seen) :]
        ids += [*between, *answer.token_ids]
        mask += [*(0 for _ in between), *(1 for _ in answer.token_ids)]
        values += [*(0.0 for _ in between), *answer.logprobs]
    return {
        "prompt_ids": tuple(prompt),
        "response_ids": tuple(ids),
        "loss_mask": tuple(mask),
        "response_logprobs": tuple(values),
        "reward": reward,
    }
