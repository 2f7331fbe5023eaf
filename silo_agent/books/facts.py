"""The facts that this site publishes about itself, and what each is made of.

    availability           up in the policy's hours, down outside of them or once this silo leaves
    earliest_start_unix_s  the beginning of the window that is open now or opens next; nothing where
                           the policy names no hours, or this silo leaves
    budget_left            what the ledger has charged against the policy's caps, of several capped
                           kinds of unit the one with the least left; nothing without a cap
    queue, free_gpu        what the operator said with ``chorale-silo facts set``, until it expires

Ordered invariants:

1. Nothing is published that ``[facts] publish`` of the policy does not list; a file that says
   nothing of facts lists none.
2. A fact is made of the policy, the clock, what the ledger has charged, the mark of a departure and
   the operator's own words. Charges follow from plans. Nothing here can read what was explored,
   learned, remembered or measured: this module imports nothing that could.
3. ``facts.json`` holds the operator's words, each with its end, for its owner's eyes only. It is
   replaced at once, and a damaged one says nothing: it is an error.

When a training was charged is data, for it is charged when exploring is over. So a daemon looks at
the ledger when it starts and when a round's record is adopted, never in the middle of one
(``silo_agent/daemon/facts.py``).

Covered: gathering, the file. Not covered: who may write the file; whether the operator is right.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from federation.errors import FactsError
from federation.membership.facts import (
    FACTS,
    MAX_UNIX_S,
    Availability,
    BudgetLeft,
    FreeGpu,
    SiloFacts,
)
from ops.files import replace_file, sync_directory
from silo_agent.errors import LocalStoreError
from silo_agent.policy.document import Hours, Policy

__all__ = [
    "FACTS_FILE",
    "LONGEST_WORD_S",
    "SOURCES",
    "OperatorsWord",
    "Word",
    "budget_left_of",
    "facts_now",
    "published_facts",
]

FACTS_FILE: Final = "facts.json"
LONGEST_WORD_S: Final = 31 * 86_400
"""For how long an operator's word may hold."""
SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "availability": "the policy's schedule, and whether this silo leaves",
        "queue": "the operator: chorale-silo facts set --queue",
        "free_gpu": "the operator: chorale-silo facts set --free-gpu",
        "budget_left": "the ledger's charges against the policy's epsilon_caps",
        "earliest_start_unix_s": "the policy's schedule",
    }
)
"""What each fact comes from, for people."""
_MAX_FILE_BYTES: Final = 4096
_DAY: Final = dt.timedelta(days=1)


# What the operator said ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """What the operator said; None where nothing holds any more."""

    queue: int | None = None
    """Jobs before this federation's."""
    queue_until_unix_s: int = 0
    """The end of that; 0 where nothing was said."""
    free_gpu: FreeGpu | None = None
    """What is free on this site's GPUs."""
    free_gpu_until_unix_s: int = 0
    """The end of that; 0 where nothing was said."""


class OperatorsWord:
    """The file in one data directory; each call reads it anew."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FACTS_FILE

    def read(self, now_unix_s: float) -> Word:
        """What still holds.

        Raises:
            LocalStoreError: The file cannot be read, or is damaged.
        """
        try:
            with self._path.open("rb") as file:
                word = _decode(file.read(_MAX_FILE_BYTES + 1))
        except FileNotFoundError:
            return Word()
        except (OSError, ValueError, TypeError, KeyError, RecursionError, FactsError) as error:
            raise LocalStoreError(
                f"{self._path} cannot be read, and no facts are published: `chorale-silo facts "
                "clear` removes it"
            ) from error
        if word.queue_until_unix_s <= now_unix_s:
            word = replace(word, queue=None, queue_until_unix_s=0)
        if word.free_gpu_until_unix_s <= now_unix_s:
            word = replace(word, free_gpu=None, free_gpu_until_unix_s=0)
        return word

    def say(
        self,
        *,
        queue: int | None = None,
        free_gpu: FreeGpu | None = None,
        now_unix_s: float,
        for_s: int,
    ) -> Word:
        """Say what is given, durably, until ``for_s`` from now; the other one stays as it was.

        Raises:
            FactsError: It is out of bounds.
            LocalStoreError: The disk refused, or the file that is there is damaged.
        """
        if not 0 < for_s <= LONGEST_WORD_S:
            raise FactsError(f"a word holds for 1 s to {LONGEST_WORD_S // 86_400} days")
        SiloFacts(queue=queue, free_gpu=free_gpu)
        word, until = self.read(now_unix_s), int(now_unix_s) + for_s
        if queue is not None:
            word = replace(word, queue=queue, queue_until_unix_s=until)
        if free_gpu is not None:
            word = replace(word, free_gpu=free_gpu, free_gpu_until_unix_s=until)
        try:
            replace_file(self._path, (_encode(word),))
        except OSError as error:
            raise LocalStoreError(f"cannot write {self._path}: {error}") from error
        return word

    def clear(self) -> bool:
        """Say nothing more; whether there was a file.

        Raises:
            LocalStoreError: The disk refused.
        """
        try:
            if not self._path.exists():
                return False
            self._path.unlink()
            sync_directory(self._path.parent)
        except OSError as error:
            raise LocalStoreError(f"cannot remove {self._path}: {error}") from error
        return True


def _encode(word: Word) -> bytes:
    said: dict[str, Any] = {}
    if word.queue is not None:
        said["queue"] = {"value": word.queue, "until_unix_s": word.queue_until_unix_s}
    if word.free_gpu is not None:
        said["free_gpu"] = {
            "value": word.free_gpu.value,
            "until_unix_s": word.free_gpu_until_unix_s,
        }
    return json.dumps(said).encode() + b"\n"


def _decode(content: bytes) -> Word:
    said = json.loads(content)
    if len(content) > _MAX_FILE_BYTES or not isinstance(said, dict):
        raise ValueError("no words of an operator")
    if not set(said) <= {"queue", "free_gpu"}:
        raise ValueError("a word too many")
    queue, queue_until = _entry(said.get("queue"))
    free_gpu, free_until = _entry(said.get("free_gpu"))
    SiloFacts(queue=queue)
    return Word(
        queue=queue,
        queue_until_unix_s=queue_until,
        free_gpu=None if free_gpu is None else FreeGpu(free_gpu),
        free_gpu_until_unix_s=free_until,
    )


def _entry(entry: Any) -> tuple[Any, int]:
    if entry is None:
        return None, 0
    value, until = entry["value"], entry["until_unix_s"]
    if len(entry) != 2 or value is None or type(until) is not int or not 0 < until <= MAX_UNIX_S:
        raise ValueError("a word without an end")
    return value, until


# Gathering ----------------------------------------------------------------------------------------


def budget_left_of(spent: Mapping[Any, float], caps: Mapping[Any, float]) -> BudgetLeft | None:
    """The bin of the least share that is left of any cap; None where there is no cap.

    Both are ε by kind of unit, as ``dp.ledger.ledger`` has them: a cap of 0 is none.
    """
    shares = [_share_left(spent.get(unit, 0.0), cap) for unit, cap in caps.items() if cap > 0.0]
    if not shares:
        return None
    left = min(shares)
    if left < 0.25:
        return BudgetLeft.UNDER_QUARTER
    if left < 0.5:
        return BudgetLeft.UNDER_HALF
    if left < 0.75:
        return BudgetLeft.UNDER_THREE_QUARTERS
    return BudgetLeft.OVER_THREE_QUARTERS


def _share_left(spent: float, cap: float) -> float:
    # What is not a number is no budget.
    return 1.0 - spent / cap if math.isfinite(spent) else 0.0


def facts_now(
    policy: Policy,
    *,
    leaving: bool,
    budget_left: BudgetLeft | None,
    word: Word,
    now_unix_s: float,
) -> SiloFacts:
    """Everything that this site could say, whether its policy publishes it or not."""
    hours = policy.schedule.hours
    now = dt.datetime.fromtimestamp(int(now_unix_s), dt.UTC)
    may_begin = not leaving and (hours is None or hours.contains(now.time()))
    return SiloFacts(
        availability=Availability.UP if may_begin else Availability.DOWN,
        queue=word.queue,
        free_gpu=word.free_gpu,
        budget_left=budget_left,
        earliest_start_unix_s=None if leaving or hours is None else _window_begins(hours, now),
    )


def published_facts(policy: Policy, facts: SiloFacts) -> SiloFacts:
    """Those of them that the policy lists."""
    return SiloFacts(
        **{name: getattr(facts, name) for name in FACTS if name in policy.facts.publish}
    )


def _window_begins(hours: Hours, now: dt.datetime) -> int | None:
    """When the window began that is open, or else when the next one begins; None if none ever is.

    Hours are whole minutes.
    """
    if hours.begin == hours.end:
        return None
    today = dt.datetime.combine(now.date(), hours.begin, dt.UTC)
    begun = now.time() >= hours.begin
    if hours.contains(now.time()):
        begins = today if begun else today - _DAY
    else:
        begins = today + _DAY if begun else today
    return int(begins.timestamp())
