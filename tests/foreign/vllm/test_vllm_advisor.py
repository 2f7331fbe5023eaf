"""A real pretrained model behind a real server as the adviser: SmolLM2, held to the schema.

It is asked as a coordinator asks: the product's connection, conversation, judge and time limit.
Asserted is that proposals are valid, and not that they are wise (`docs/experiments/agentic.md`).
"""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from federation.advice.conversation import Budget, Failure, GiveUp
from federation.advice.proposal import Proposal
from federation.advice.record import AdviceRecord, replay
from server.advisor.consult import consult
from server.advisor.endpoint import Endpoint
from tests.foreign.vllm.conftest import PYTHON
from tests.foreign.vllm.vllm_server import VllmServer
from tests.kit.evolution import smollm2
from tests.kit.federation.advice import state

CONTEXT = 8192


@pytest.fixture(scope="module", params=["tools", "no tools"])
def served(request, tmp_path_factory):
    """Whether the server takes tools, and the connection to it."""
    scratch = tmp_path_factory.mktemp("adviser")
    takes_tools = request.param == "tools"
    server = VllmServer(
        PYTHON, smollm2.base(scratch), scratch, dtype="bfloat16", most_tokens=CONTEXT,
        takes_tools=takes_tools,
    )  # fmt: skip
    key = SecretStr(server.key_file.read_text())
    yield takes_tools, Endpoint(f"{server.url}/v1", "base", api_key=key)
    server.stop()


def asked(endpoint, of, budget) -> AdviceRecord:
    return asyncio.run(consult(of, budget, endpoint, "base"))


@pytest.mark.parametrize("past", [0, 3, 12])
@pytest.mark.parametrize("names_silos", [False, True])
def test_what_a_small_model_proposes_is_valid_and_reproduces(served, past, names_silos):
    _, endpoint = served
    of = state(past=past, names_silos=names_silos)
    record = asked(endpoint, of, Budget(tool_calls=0, seconds=300))
    print(f"\nfigure: {[turn.milliseconds for turn in record.turns]} ms, {record.result!r:.300}")
    assert isinstance(record.result, Proposal)
    assert replay(AdviceRecord.decode(record.encode())) == record.result


def test_tools_are_looked_up_or_the_policy_decides(served):
    """A server that refuses tools answers 400: a fallback, which `advisor_tools = false` spares."""
    takes_tools, endpoint = served
    record = asked(endpoint, state(), Budget(seconds=300))
    print(f"\nfigure: {len(record.turns)} requests, {record.result!r:.300}")
    if not takes_tools:
        assert isinstance(record.result, GiveUp)
        assert record.result.failure is Failure.HTTP_STATUS
    else:
        assert not isinstance(record.result, GiveUp) or record.result.failure is None
    assert replay(AdviceRecord.decode(record.encode())) == record.result
