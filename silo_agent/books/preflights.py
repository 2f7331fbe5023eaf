"""What this silo answered to pre-flights, and how many questions it judged today.

``preflights.jsonl`` holds one line for each answer, oldest first: the question's digest, the day,
the verdict, the rule, the terms of an offer, and the signature.

Invariants:

1. An answer is on disk before it leaves. The same question, that is the same plan, roster and
   token, gets it again byte for byte, also after a restart and whatever the policy says by then.
2. Each new question takes one of the day's, over all plans and tokens. Days never go back
   (``dp/ledger/counts.py``), so a clock that is set back gives no further questions.
3. The newest ``MAX_ANSWERS`` are kept. A question whose answer was forgotten counts as a new one,
   as it would under another token.
4. The file is replaced at once, for its owner's eyes only. A damaged one answers nothing.

Covered: crashes, restarts, damage, clocks. Not covered: an operator who deletes the file or puts an
older copy back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dp.errors import SpecError
from dp.ledger.counts import DayCount
from federation.chain.preflight import PreflightAnswer, Verdict
from federation.errors import ChainError
from federation.plan.negotiation import Offer
from ops.files import replace_file
from silo_agent.errors import LocalStoreError

__all__ = ["MAX_ANSWERS", "PREFLIGHTS_FILE", "Preflights"]

PREFLIGHTS_FILE: Final = "preflights.jsonl"
MAX_ANSWERS: Final = 4096
"""More than the most questions of a day that a policy may allow."""
_MAX_FILE_BYTES: Final = 4 << 20


class Preflights:
    """One data directory's answers; for one thread."""

    def __init__(
        self,
        data_dir: Path,
        *,
        silo_id: str,
        most_per_day: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read what was answered before; ``clock`` gives Unix seconds.

        Raises:
            LocalStoreError: The file cannot be read, or is damaged.
        """
        self._path = data_dir / PREFLIGHTS_FILE
        self._silo_id = silo_id
        self._most = most_per_day
        self._days = DayCount(clock)
        self._kept: dict[bytes, tuple[bytes, PreflightAnswer]] = {}
        self._load()

    @property
    def today(self) -> int:
        """The day that a question of now belongs to, in days since 1970-01-01 00:00 UTC."""
        return self._days.today()

    @property
    def used_up(self) -> bool:
        """Whether no further question may be judged today."""
        return self._days.debits() >= self._most

    def stored(self, preflight_sha256: bytes) -> PreflightAnswer | None:
        """The answer that this question got; None if it is new."""
        line_and_answer = self._kept.get(preflight_sha256)
        return None if line_and_answer is None else line_and_answer[1]

    def keep(self, answer: PreflightAnswer) -> None:
        """Write down the answer to a new question, durably, as one of today's.

        Raises:
            LocalStoreError: The disk refused; then nothing may leave.
        """
        day = self._days.today()
        entry: dict[str, Any] = {
            "preflight": answer.preflight_sha256.hex(),
            "day": day,
            "verdict": answer.verdict.value,
            "rule": answer.rule,
            "signature": answer.signature.hex(),
        }
        if answer.offer is not None:
            entry["offer"] = answer.offer.fields()
        line = json.dumps(entry, separators=(",", ":")).encode()
        kept = {**self._kept, answer.preflight_sha256: (line, answer)}
        if len(kept) > MAX_ANSWERS:
            del kept[next(iter(kept))]
        try:
            replace_file(self._path, (line + b"\n" for line, _ in kept.values()))
        except OSError as error:
            raise LocalStoreError(f"cannot write {self._path}: {error}") from error
        self._kept = kept
        self._days.add(day)

    def _load(self) -> None:
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            raise LocalStoreError(f"cannot read {self._path}: {error}") from error
        try:
            for line in _whole_lines(content):
                self._take(line, json.loads(line))
        except (
            ValueError, TypeError, KeyError, AttributeError, RecursionError, ChainError, SpecError
        ) as error:  # fmt: skip
            raise LocalStoreError(
                f"{self._path} is damaged, and no pre-flight is answered: put back a copy, or "
                "remove the file, after which a whole day's number of them is answered anew"
            ) from error

    def _take(self, line: bytes, entry: Any) -> None:
        terms = entry.get("offer")
        answer = PreflightAnswer(
            preflight_sha256=bytes.fromhex(entry["preflight"]),
            silo_id=self._silo_id,
            verdict=Verdict(entry["verdict"]),
            rule=entry["rule"],
            offer=None if terms is None else Offer.of(terms),
            signature=bytes.fromhex(entry["signature"]),
        )
        day = entry["day"]
        if type(day) is not int:
            raise TypeError("a day is a whole number")
        self._days.add(day)
        self._kept[answer.preflight_sha256] = line, answer


def _whole_lines(content: bytes) -> list[bytes]:
    if len(content) > _MAX_FILE_BYTES or not content.endswith(b"\n"):
        raise ValueError("too long, or cut off")
    return content.splitlines()
