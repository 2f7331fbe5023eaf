"""A rule that answers as a model's endpoint would: a request's bytes in, a completion's bytes out.

It reads what a model would read, the first message and what its tool calls were answered, and keeps
nothing between requests. The rule::

    K          nothing known: half of those there. A round that was lost: half as many again. Else
               two fewer where success rose by more than the error of the difference, two more
               where it did not
    deadline   nothing known: the longest. A round that was lost: half as long again. All answered:
               a quarter more than they took. Four of five: an eighth less. Three of five: as it
               was. Fewer: a quarter more
    silos      where it names them: the K whom it expects soonest by what they publish, those first
               that were not lost lately; it looks that up by ``get_facts``

All within the limits that the request states. It proposes neither to stop nor to diagnose.

Covered: both styles; a request that it cannot read is answered with a text that is refused. Not
covered: anything that a model would bring beyond a rule.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from federation.membership.facts import Availability, FreeGpu

__all__ = ["MODEL", "answer"]

MODEL: Final = "rule"
"""What its records call it."""
_STEP: Final = 2
_MORE: Final = 1.25
_AFTER_LOSS: Final = 1.5
_LESS: Final = 0.875
_NEARLY_ALL: Final = 0.8
"""Share of those asked: with so many ready the deadline may be too long."""
_MOST: Final = 0.6
"""And with fewer it was too short."""
_FREE: Final = {FreeGpu.ALL: 0, FreeGpu.MOST: 1, FreeGpu.SOME: 2, FreeGpu.NONE: 3}
_UNKNOWN_QUEUE: Final = 1
_FROM_TO: Final = re.compile(r"(\d+) to (\d+)")
Limit = tuple[int, int]
_LOOK_UP: Final = {"id": "look", "type": "function"}


def answer(request: bytes) -> bytes:
    """The body of a completion."""
    try:
        asked = json.loads(request)
        message = _message(asked)
    except (ValueError, KeyError, TypeError, IndexError):
        message = {"content": "no request that can be read"}
    message = {"role": "assistant", **message}
    return json.dumps({"choices": [{"index": 0, "message": message}]}).encode()


def _message(asked: Mapping[str, Any]) -> dict[str, Any]:
    # The second line of the question is what is known, as JSON; then come the keys of an answer.
    question = asked["messages"][1]["content"].split("\n")
    known, keys = json.loads(question[1]), dict(map(_key, question[3:]))
    looked_up = [m["content"] for m in asked["messages"] if m["role"] == "tool"]
    if "silos" in keys and not looked_up:
        call = {**_LOOK_UP, "function": {"name": "get_facts", "arguments": "{}"}}
        return {"content": None, "tool_calls": [call]}
    proposal = _proposal(known, keys)
    if "silos" in keys:
        rows = json.loads(looked_up[-1])["silos"]
        count = _count(known, *keys["silos"])
        proposal["silos"] = _soonest(rows, count)
    return {"content": json.dumps({k: v for k, v in proposal.items() if k in keys})}


def _key(line: str) -> tuple[str, Limit]:
    """A key that an answer has, and the least and most that its line states, or zeros."""
    key, _, meaning = line.removeprefix("- ").partition(": ")
    stated = _FROM_TO.search(meaning)
    return key, (0, 0) if stated is None else (int(stated[1]), int(stated[2]))


def _proposal(known: Mapping[str, Any], keys: Mapping[str, Limit]) -> dict[str, Any]:
    proposal: dict[str, Any] = {
        "reason": _reason(known["newest_rounds"]),
        "stop": False,
        "diagnose": False,
    }
    if limit := keys.get("count"):
        proposal["count"] = _count(known, *limit)
    if limit := keys.get("ready_deadline_s"):
        least, most = limit
        wished = _deadline_s(known["newest_rounds"], most)
        proposal["ready_deadline_s"] = min(max(wished, least), most)
    return proposal


def _count(known: Mapping[str, Any], least: int, most: int) -> int:
    rounds = known["newest_rounds"]
    if not rounds:
        wished = math.ceil(most / 2)
    elif _is_lost(rounds[-1]):
        wished = math.ceil(_AFTER_LOSS * rounds[-1]["asked"])
    else:
        wished = rounds[-1]["asked"] + (-_STEP if _rose(rounds) else _STEP)
    return int(min(max(wished, least), most))


def _rose(rounds: Sequence[Mapping[str, Any]]) -> bool:
    """Whether success is above that of the round before by more than the error of both."""
    figures = [row for row in rounds if not _is_lost(row) and "success" in row]
    if len(figures) < 2:
        return False
    before, newest = figures[-2:]
    error = math.hypot(before["success_error"], newest["success_error"])
    return bool(newest["success"] - before["success"] > error)


def _deadline_s(rounds: Sequence[Mapping[str, Any]], most: int) -> int:
    if not rounds:
        return most
    newest = rounds[-1]
    if _is_lost(newest):
        return math.ceil(_AFTER_LOSS * float(newest["seconds"]))
    answered = newest["survivors"] / newest["asked"]
    # A round that somebody was late for took as long as its deadline.
    factor: float = _MORE
    if _MOST <= answered < 1:
        factor = _LESS if answered >= _NEARLY_ALL else 1.0
    return math.ceil(factor * float(newest["seconds"]))


def _reason(rounds: Sequence[Mapping[str, Any]]) -> str:
    if not rounds:
        return "nothing is known yet"
    if _is_lost(rounds[-1]):
        return "the last round was lost"
    return "success rises" if _rose(rounds) else "success does not rise by more than its error"


def _is_lost(row: Mapping[str, Any]) -> bool:
    return bool(row["outcome"] != "aggregated")


def _soonest(rows: Sequence[Mapping[str, Any]], count: int) -> list[str]:
    def rank(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return (
            row["lost_in_a_row"],
            row.get("availability") == Availability.DOWN,
            row.get("earliest_start_in_s", 0),
            row.get("queue", _UNKNOWN_QUEUE),
            _FREE[FreeGpu(row.get("free_gpu", FreeGpu.MOST))],
            -row.get("rounds_since_asked", math.inf),
            row["id"],
        )

    return sorted(row["id"] for row in sorted(rows, key=rank)[:count])
