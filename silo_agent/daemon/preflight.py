"""Answers the coordinator's pre-flights: whether this silo would take part in a run.

A question comes beside the answer to a poll and is handled on a thread of its own, so that a round
goes on as if it were not there.

Ordered invariants:

1. The roster is verified under the pinned root, and the question under the key that it names,
   before anything is looked up or judged.
2. A question that was answered gets the stored answer. A new one is judged once, by the rules that
   a task of the run's first round would meet now (``silo_agent/daemon/gate.py``), as long as the
   day's questions last; beyond them every question gets the same refusal. So is an offer, which
   follows from policy, schedule and ledger alone.
3. The answer is on disk, and audited, before it leaves.
4. It leaves ``ANSWER_AFTER_S`` after the question came, stored, new or refused. What is not ready
   by then is not sent: it is counted as an error here, and given when the question is repeated.
5. One question at a time; another one that comes meanwhile is not answered. It is asked again.
6. A failure is one line of the log, and concerns no round.

Covered: replays, restarts, a question under another key, a slow judgement. Not covered: what a
coordinator learns of the site's policy by asking about many plans, which the day's limit bounds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from chorale.v1 import aggregation_pb2
from federation.chain.preflight import (
    ANSWER_AFTER_S,
    ASKED_TOO_OFTEN,
    Preflight,
    PreflightAnswer,
    Verdict,
)
from federation.plan.negotiation import Offer
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from federation.wire import preflight_from_proto
from ops.logs.logger import get_logger
from secagg.roster import SignedRoster
from silo_agent.books.preflights import Preflights
from silo_agent.daemon.audited import DaemonAudit
from silo_agent.daemon.polling import EXPECTED
from silo_agent.errors import PreflightLateError
from silo_agent.identity.identity import Identity
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.policy import APPROVAL_RULE, Decision

__all__ = ["Asks", "PreflightDesk"]

log = get_logger(__name__)


class Asks(Protocol):
    """What the desk needs of the coordinator."""

    def plan(self, plan_sha256: bytes) -> bytes:
        """The TOML bytes with this SHA-256."""

    def answer_preflight(self, answer: PreflightAnswer) -> None:
        """Send an answer, once."""


class PreflightDesk:
    """One daemon's."""

    def __init__(
        self,
        *,
        data_dir: Path,
        identity: Identity,
        coordinator: Asks,
        audit: DaemonAudit,
        metrics: SiloMetrics,
        stopping: threading.Event,
        most_per_day: int,
        roster_of: Callable[[bytes], SignedRoster],
        judge: Callable[[Preflight, Plan], Decision],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Wire the desk.

        ``roster_of`` gives the verified roster with a digest, or raises. ``judge`` is the
        guardian's verdict on a verified question about a plan. ``clock`` gives Unix seconds; it
        decides which day a question belongs to, and no delay.
        """
        self._data_dir = data_dir
        self._identity = identity
        self._coordinator = coordinator
        self._audit = audit
        self._metrics = metrics
        self._stopping = stopping
        self._most_per_day = most_per_day
        self._roster_of = roster_of
        self._judge = judge
        self._clock = clock
        self._answering = threading.Lock()
        self._thread: threading.Thread | None = None
        self._book: Preflights | None = None
        self._roster: SignedRoster | None = None
        self._refused_on = -1

    def hear(self, message: aggregation_pb2.Preflight) -> None:
        """Take up a question that has just come; returns at once."""
        came_s = time.monotonic()
        if not self._answering.acquire(blocking=False):
            return
        thread = threading.Thread(
            target=self._serve, args=(message, came_s), name="preflight", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            # The instruction beside it goes on, and the question is asked again.
            self._answering.release()
            self._metrics.count_error(type(error).__name__)
            log.warning("preflight_not_answered", kind=type(error).__name__, detail=error)
            return
        self._thread = thread

    def close(self) -> None:
        """Wait for the answer that is being given; the daemon is stopping."""
        if self._thread is not None:
            self._thread.join(timeout=30.0)

    def _serve(self, message: aggregation_pb2.Preflight, came_s: float) -> None:
        leaves_s = came_s + ANSWER_AFTER_S
        try:
            answer = self._answer(preflight_from_proto(message))
            _require_in_time(leaves_s)
            if not self._wait_until(leaves_s):
                self._coordinator.answer_preflight(answer)
        except Exception as error:
            self._metrics.count_error(type(error).__name__)
            if not self._stopping.is_set():
                log.warning(
                    "preflight_not_answered",
                    kind=type(error).__name__,
                    detail=error,
                    exc_info=None if isinstance(error, EXPECTED) else error,
                )
            # No sooner ready for the next question, and no sooner another line.
            self._wait_until(leaves_s)
        finally:
            self._answering.release()

    def _wait_until(self, monotonic_s: float) -> bool:
        """Wait; says whether the daemon is stopping."""
        return self._stopping.wait(max(0.0, monotonic_s - time.monotonic()))

    def _answer(self, preflight: Preflight) -> PreflightAnswer:
        if self._roster is None or self._roster.roster.sha256 != preflight.roster_sha256:
            self._roster = self._roster_of(preflight.roster_sha256)
        preflight.verify(self._roster.roster.coordinator_key)
        book = self._open_book()
        stored = book.stored(preflight.sha256)
        if stored is not None:
            return stored
        if book.used_up:
            answer = self._signed(preflight, Verdict.REFUSE, ASKED_TOO_OFTEN)
            if self._refused_on != book.today:
                # Once a day: how often it is asked beyond that must not fill the log.
                self._refused_on = book.today
                self._audit.preflight(preflight, answer)
            return answer
        plan = read_plan(self._coordinator.plan(preflight.plan_sha256))
        decision = self._judge(preflight, plan)
        answer = self._signed(preflight, *_verdict(decision), offer=decision.offer)
        book.keep(answer)
        self._audit.preflight(preflight, answer)
        log.info("preflight_answered", outcome=answer.verdict.value, rule=decision.rule)
        return answer

    def _open_book(self) -> Preflights:
        if self._book is None:
            self._book = Preflights(
                self._data_dir,
                silo_id=self._identity.silo_id,
                most_per_day=self._most_per_day,
                clock=self._clock,
            )
        return self._book

    def _signed(
        self, preflight: Preflight, verdict: Verdict, rule: str, *, offer: Offer | None = None
    ) -> PreflightAnswer:
        return PreflightAnswer(
            preflight_sha256=preflight.sha256,
            silo_id=self._identity.silo_id,
            verdict=verdict,
            rule=rule,
            offer=offer,
        ).sign(self._identity.signing_key)


def _verdict(decision: Decision) -> tuple[Verdict, str]:
    if decision.accepted:
        return Verdict.ACCEPT, ""
    if decision.rule == APPROVAL_RULE:
        return Verdict.WAITS_FOR_APPROVAL, ""
    return Verdict.REFUSE if decision.offer is None else Verdict.OFFER, decision.rule


def _require_in_time(leaves_s: float) -> None:
    if time.monotonic() > leaves_s:
        raise PreflightLateError(
            f"a pre-flight took longer than {ANSWER_AFTER_S:g} s and was not answered: it is when "
            "the coordinator asks again"
        )
