"""States, budgets and chat completions of consultations."""

from __future__ import annotations

import base64
import json

from federation.advice.conversation import Asking, Budget, begin
from federation.advice.proposal import Limits
from federation.advice.record import AdviceRecord
from federation.advice.state import (
    PublishedFacts,
    RoundOutcome,
    RoundState,
    RoundSummary,
    SiloState,
)
from federation.membership.facts import Availability, BudgetLeft, FreeGpu

IDS = tuple(f"silo-{number:02d}" for number in range(1, 7))
MODEL = "qwen3:0.6b"


def limits(**changed):
    given = {
        "may_choose": True,
        "names_silos": False,
        "least": 3,
        "alive": IDS,
        "ready_deadline_s": (60, 600),
        "local_epochs": (1, 4),
        "may_stop": True,
        "may_diagnose": True,
    }
    return Limits(**{**given, **changed})


def silo(silo_id, number=0):
    return SiloState(
        id=silo_id,
        facts=PublishedFacts(
            availability=(Availability.UP, Availability.DOWN)[number % 2],
            queue=number,
            free_gpu=tuple(FreeGpu)[number % 4],
            budget_left=BudgetLeft.OVER_THREE_QUARTERS,
            earliest_start_in_s=30 * number,
        ),
        families=1 + number % 3,
        lost_in_a_row=number // 5,
        rounds_since_asked=None if number == 0 else number,
    )


def summary(number, **changed):
    given = {
        "round": number,
        "asked": 6,
        "survivors": 5,
        "outcome": RoundOutcome.AGGREGATED,
        "seconds": 100 + number,
        "upload_bytes": 1_000_000,
        "success": 0.5,
        "success_error": 0.03,
    }
    return RoundSummary(**{**given, **changed})


def state(*, past=3, **changed):
    held = limits(**changed)
    return RoundState(
        round=past + 1,
        rounds=400,
        limits=held,
        silos=tuple(silo(silo_id, number) for number, silo_id in enumerate(held.alive)),
        history=tuple(summary(number) for number in range(1, past + 1)),
    )


def proposal(**changed):
    """The text of a good answer within ``limits()``."""
    given = {
        "reason": "enough for a small error",
        "count": 4,
        "ready_deadline_s": 120,
        "local_epochs": 2,
        "stop": False,
        "diagnose": False,
    }
    return json.dumps({**given, **changed})


def completion(content, *, calls=(), tokens=100):
    """The body of a chat completion."""
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"x{place}", "type": "function", "function": {"name": name, "arguments": given}}
            for place, (name, given) in enumerate(calls)
        ]
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
    }
    if tokens is not None:
        body["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": tokens}
    return json.dumps(body).encode()


def held(answers, *, of=None, budget=None):
    """The record of a consultation in which these bodies or failures came back in turn."""
    record = AdviceRecord(state=of or state(), budget=budget or Budget(), model=MODEL)
    step = begin(record.state, record.budget, record.model)
    for said in answers:
        assert isinstance(step, Asking)
        record = record.asked(step)
        record, step = record.told(step, said, milliseconds=7)
    return record


def said_in(body):
    """The messages of a request."""
    return json.loads(body)["messages"]


def encoded(content):
    return base64.b64encode(content).decode()
