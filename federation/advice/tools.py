"""What a model may look up while it decides, answered from the state alone.

    get_facts(silo_id?)       what one silo published; of all, or counts where they are too many
    get_round_summary(round)  one earlier round
    get_history(last)         the newest rounds, one by one, and one line of means of all before

Invariants: a call is a tool's name and arguments of exact types, or it is none; what is looked up
in vain is told in a fixed text; every answer is JSON of at most ``MAX_ANSWER_BYTES`` bytes and
depends on the state and the call alone.

Covered: arguments of any bytes. Not covered: how many calls are answered
(``federation.advice.conversation``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from federation.advice.state import (
    MAX_ROUNDS,
    RoundOutcome,
    RoundState,
    RoundSummary,
    SiloState,
)
from federation.advice.strict_json import JsonFaultError, canonical_json, read_json
from federation.membership.facts import Availability, BudgetLeft, FreeGpu
from secagg import bounds
from secagg.errors import MalformedMessageError

__all__ = [
    "MAX_ANSWER_BYTES",
    "MAX_LAST",
    "TOOLS",
    "Tool",
    "ToolCall",
    "answer",
    "facts_of_all",
    "row_of",
]

MAX_ANSWER_BYTES: Final = 12 << 10
MAX_ARGUMENT_BYTES: Final = 512
MAX_LAST: Final = 16
"""Rounds told one by one at most."""
_DIGITS: Final = 4
"""Of figures; what a model reads off a mean is coarser."""


class Tool(StrEnum):
    """What may be called."""

    GET_FACTS = "get_facts"
    GET_ROUND_SUMMARY = "get_round_summary"
    GET_HISTORY = "get_history"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call that names a tool and has its arguments."""

    tool: Tool
    silo_id: str | None = None
    """In the form of an id, whether or not anybody has it."""
    number: int = 0
    """The round, or how many of the newest."""

    @classmethod
    def read(cls, name: str, arguments: str) -> ToolCall | None:
        """The call that a model wrote; None where it is none."""
        if name not in set(Tool):
            return None
        try:
            content = (arguments or "{}").encode("utf-8")
            given = read_json(content, max_bytes=MAX_ARGUMENT_BYTES, max_depth=1)
        except (UnicodeEncodeError, JsonFaultError):
            return None
        tool = Tool(name)
        if not isinstance(given, dict) or not given.keys() <= {_ARGUMENT[tool]}:
            return None
        value = given.get(_ARGUMENT[tool])
        if tool is Tool.GET_FACTS:
            return cls(tool=tool, silo_id=value) if value is None or _is_silo_id(value) else None
        if type(value) is not int or not 0 <= value <= MAX_ROUNDS:
            return None
        return cls(tool=tool, number=value)

    def arguments(self) -> str:
        """Its arguments in one form, for the conversation."""
        value = self.silo_id if self.tool is Tool.GET_FACTS else self.number
        given = {} if value is None else {_ARGUMENT[self.tool]: value}
        return canonical_json(given).decode()


_ARGUMENT: Final = {
    Tool.GET_FACTS: "silo_id",
    Tool.GET_ROUND_SUMMARY: "round",
    Tool.GET_HISTORY: "last",
}


def _is_silo_id(value: object) -> bool:
    try:
        bounds.require_silo_id(value, "silo_id")
    except MalformedMessageError:
        return False
    return True


def _function(tool: Tool, what: str, argument: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.value,
            "description": what,
            "parameters": {
                "type": "object",
                "properties": {_ARGUMENT[tool]: argument},
                "required": [_ARGUMENT[tool]] if required else [],
                "additionalProperties": False,
            },
        },
    }


TOOLS: Final[tuple[dict[str, Any], ...]] = (
    _function(
        Tool.GET_FACTS,
        "What a silo published about itself; without silo_id, of all who are there.",
        {"type": "string", "description": "the id of one silo"},
        required=False,
    ),
    _function(
        Tool.GET_ROUND_SUMMARY,
        "One earlier round: asked, in the sum, seconds, bytes, success with its standard error.",
        {"type": "integer", "description": "the round, from 1"},
        required=True,
    ),
    _function(
        Tool.GET_HISTORY,
        "The newest rounds one by one, and the means of all before them.",
        {"type": "integer", "minimum": 1, "maximum": MAX_LAST},
        required=True,
    ),
)
"""As a request offers them."""


def answer(call: ToolCall, state: RoundState) -> str:
    """What a call is answered: JSON."""
    if call.tool is Tool.GET_FACTS:
        said = _facts(call.silo_id, state)
    elif call.tool is Tool.GET_ROUND_SUMMARY:
        said = _round(call.number, state)
    else:
        said = _history(call.number, state)
    return canonical_json(said).decode()


def facts_of_all(state: RoundState) -> dict[str, Any]:
    """Counts and ranges of what the silos published."""
    facts = [silo.facts for silo in state.silos]
    words: dict[str, list[Availability | FreeGpu | BudgetLeft | None]] = {
        "availability": [fact.availability for fact in facts],
        "free_gpu": [fact.free_gpu for fact in facts],
        "budget_left": [fact.budget_left for fact in facts],
    }
    ranges = {
        "queue": [fact.queue for fact in facts if fact.queue is not None],
        "earliest_start_in_s": [
            fact.earliest_start_in_s for fact in facts if fact.earliest_start_in_s is not None
        ],
    }
    return {
        "silos": len(state.silos),
        "lost_last_time": sum(silo.lost_in_a_row > 0 for silo in state.silos),
        "never_asked": sum(silo.rounds_since_asked is None for silo in state.silos),
        **{
            name: dict(Counter(word.value for word in said if word is not None))
            for name, said in words.items()
        },
        **{
            name: {"least": min(values), "mean": _mean(values), "most": max(values)}
            for name, values in ranges.items()
            if values
        },
    }


def row_of(summary: RoundSummary) -> dict[str, Any]:
    """One round, as a model reads it."""
    row = summary.model_dump(mode="json", exclude_none=True)
    return {key: _rounded(value) if type(value) is float else value for key, value in row.items()}


def _facts(silo_id: str | None, state: RoundState) -> dict[str, Any]:
    if silo_id is not None:
        found = [silo for silo in state.silos if silo.id == silo_id]
        return _silo(found[0]) if found else {"error": "nobody of this id is there"}
    rows = {"silos": [_silo(silo) for silo in state.silos]}
    if len(canonical_json(rows)) <= MAX_ANSWER_BYTES:
        return rows
    return {"of_all": facts_of_all(state), "hint": "name a silo_id for one silo"}


def _silo(silo: SiloState) -> dict[str, Any]:
    row = silo.model_dump(mode="json", exclude_none=True)
    return {**row.pop("facts"), **row}


def _round(number: int, state: RoundState) -> dict[str, Any]:
    for summary in state.history:
        if summary.round == number:
            return row_of(summary)
    return {"error": "no such round is known", **_known(state)}


def _history(last: int, state: RoundState) -> dict[str, Any]:
    if not 1 <= last <= MAX_LAST:
        return {"error": f"last is 1 to {MAX_LAST}"}
    newest, before = state.history[-last:], state.history[:-last]
    rounds = {"rounds": [row_of(summary) for summary in newest]}
    return {**rounds, "before": _means(before)} if before else rounds


def _means(rounds: Sequence[RoundSummary]) -> dict[str, Any]:
    """All of them as one line."""
    line: dict[str, Any] = {
        "first": rounds[0].round,
        "last": rounds[-1].round,
        "rounds": len(rounds),
        "aggregated": sum(past.outcome is RoundOutcome.AGGREGATED for past in rounds),
        "mean_asked": _mean([past.asked for past in rounds]),
        "mean_survivors": _mean([past.survivors for past in rounds]),
        "mean_seconds": _mean([past.seconds for past in rounds]),
        "mean_upload_bytes": _mean([past.upload_bytes for past in rounds]),
    }
    figures = [
        (past.success, past.success_error)
        for past in rounds
        if past.success is not None and past.success_error is not None
    ]
    if figures:
        line["mean_success"] = _mean([mean for mean, _ in figures])
        # Errors of different rounds are independent: each has masks and noise of its own.
        error = math.sqrt(math.fsum(error**2 for _, error in figures)) / len(figures)
        line["mean_success_error"] = _rounded(error)
    return line


def _known(state: RoundState) -> dict[str, Any]:
    if not state.history:
        return {}
    return {"first": state.history[0].round, "last": state.history[-1].round}


def _mean(values: Sequence[float]) -> float:
    return _rounded(math.fsum(values) / len(values))


def _rounded(value: float) -> float:
    # Adding zero makes of minus zero zero.
    return round(value, _DIGITS) + 0.0
