"""What leaves a federation, served: the exported adapter beside its base, and both as one model.

The directory is the one `chorale adapter export` writes (`federation.adapter.export`), named on the
server's command line as its README says. Answers are compared with peft's own on the same tokens.
"""

from __future__ import annotations

import json
import warnings
from http.client import HTTPConnection

import numpy as np
import pytest
import torch
from peft import PeftModel

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.model.causal_lm import load_base
from evolution.model.lora import initial_adapter
from evolution.rollout.conversation import ChatFormat
from evolution.rollout.hf import HfEngine
from federation.adapter.export import write_peft_adapter
from lab.serving.merge import merge, read_adapter_at
from tests.foreign.vllm.conftest import PYTHON
from tests.foreign.vllm.vllm_server import VllmServer

RANK, ALPHA = 8, 16.0
NEW_TOKENS = 12
NATS = 5e-5
NEAR_TIE = 1e-3
TASKS = 24


@pytest.fixture(scope="module")
def exported(base, tmp_path_factory):
    rng = np.random.default_rng(5)
    tensors = {
        name: value + rng.normal(0, 0.05, value.shape).astype(np.float32)
        for name, value in initial_adapter(base, RANK, ALPHA, 5).items()
    }
    return write_peft_adapter(
        tensors, tmp_path_factory.mktemp("exported") / "adapter", base=str(base), rank=RANK,
        alpha=ALPHA, provenance={"run": "r"}, card="# A card\n",
    )  # fmt: skip


@pytest.fixture(scope="module")
def openings(base):
    chat: ChatFormat = HfEngine(base, alpha=ALPHA).chat
    found = []
    for name in ("craft", "maze", "shop"):
        environment = make(name)
        for task_id in environment.task_ids(Split.HELD_OUT)[: TASKS // 3]:
            first, _ = environment.reset(task_id)
            found.append(chat.opening(environment.instruction, first))
        environment.close()
    return found


def greedy_with(model, openings):
    """Tokens and log-probabilities, one opening at a time."""
    answers = []
    for ids in openings:
        tokens, logprobs = list(ids), []
        for _ in range(NEW_TOKENS):
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([tokens])).logits[0, -1]
            scores = torch.log_softmax(logits, -1)
            tokens.append(int(scores.argmax()))
            logprobs.append(float(scores.max()))
        answers.append((tokens[len(ids) :], logprobs))
    return answers


def greedy_from(server, model, openings):
    """The same, from the server's OpenAI interface."""
    answers = []
    connection = HTTPConnection("127.0.0.1", server.port, timeout=600)
    for ids in openings:
        body = {
            "model": model, "prompt": list(ids), "max_tokens": NEW_TOKENS, "temperature": 0,
            "logprobs": 1, "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {server.key_file.read_text()}",
        }
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == 200, content
        (choice,) = content["choices"]
        answers.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
    connection.close()
    return answers


def compare(expected, found):
    """How many answers are equal; where they part, both were within rounding of the other."""
    equal = 0
    for (tokens, logprobs), (theirs, their_logprobs) in zip(expected, found, strict=True):
        equal += tokens == theirs
        for ours, other, mine, served in zip(tokens, theirs, logprobs, their_logprobs, strict=True):
            if ours != other:
                assert abs(mine - served) < NEAR_TIE
                break
            assert abs(mine - served) < NATS
    return equal


def test_the_exported_adapter_is_served_as_its_readme_says(base, exported, openings, tmp_path):
    with warnings.catch_warnings():
        # peft 0.21 reads a property that transformers has deprecated.
        warnings.filterwarnings("ignore", category=FutureWarning)
        adapted = PeftModel.from_pretrained(load_base(base), exported).eval()
    expected = greedy_with(adapted, openings)
    bare = greedy_with(load_base(base), openings)
    server = VllmServer(PYTHON, base, tmp_path, adapters={"chorale": exported})
    try:
        served = greedy_from(server, "chorale", openings)
        without = greedy_from(server, "base", openings)
    finally:
        server.stop()
    equal = compare(expected, served)
    print(f"\nfigure: exported adapter: {equal}/{len(openings)} greedy answers are peft's")
    assert compare(bare, without) >= len(openings) - 1
    assert equal >= len(openings) - 1
    assert served != without


def test_the_merged_model_is_served_without_an_adapter(base, exported, openings, tmp_path):
    merged = merge(read_adapter_at(exported), base, tmp_path / "merged").directory
    expected = greedy_with(load_base(merged), openings)
    server = VllmServer(PYTHON, merged, tmp_path)
    try:
        served = greedy_from(server, "base", openings)
    finally:
        server.stop()
    equal = compare(expected, served)
    print(f"\nfigure: merged model: {equal}/{len(openings)} greedy answers are transformers'")
    assert equal >= len(openings) - 1
