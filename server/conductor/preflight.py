"""Asks the silos of the roster whether they would take part in a run, before anything starts.

A question is signed, goes out beside the answers to the silos' polls, and each answer is verified
under the roster's key of its silo. Who is not there, says nothing in time or is of a release that
knows no such question is shown as such; none of these is an accept.

Invariants:

1. One question is out at a time; the next one waits. A question is told again to a silo that has
   not answered, and to nobody who has.
2. An answer counts if it is about the question that is out, of a silo that was asked, under that
   silo's signature, and the only one of it; an offer, if it lies inside the ranges of the plan.
   Anything else is a typed error, and changes nothing.
3. Nothing of it is stored but the lines of the audit log. Asked again after a restart under the
   same token, silos give the answers that they gave.
4. It starts nothing: a run is started without it or with it (``server/cli/run.py``).

Covered: silos that are absent, silent, old, lying, or suspended meanwhile; admins that hang up. Not
covered: whether a silo will do what it said; what becomes of offers (``negotiation.py``).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

from chorale.v1 import admin_pb2
from federation.chain.preflight import Preflight, PreflightAnswer
from federation.errors import ChainError
from federation.plan.negotiation import outside
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from federation.version import OFFERS, PREFLIGHTS
from federation.wire import offer_to_proto
from secagg.roster import Roster
from server.audit import AuditEvent
from server.conductor.submit_token import require_submit_token
from server.context import RunContext
from server.errors import PreflightAnswerError, RunError

__all__ = ["ABSENT", "CANNOT_SAY", "NO_ANSWER", "Preflights"]

ANSWER_WITHIN_S: Final = 20.0
"""A silo answers about a second after it polls, and polls every few seconds."""
AGAIN_S: Final = 3.0
"""What was not answered in this time is asked again: it, or its answer, may be lost."""
_TICK_S: Final = 1.0

CANNOT_SAY: Final = "cannot_say"
"""Of a silo of an earlier release."""
ABSENT: Final = "absent"
"""Of a silo that was not heard of lately, or may take no part."""
NO_ANSWER: Final = "no_answer"
"""Of a silo that is there and did not answer in time."""


@dataclass(kw_only=True, slots=True)
class _Asking:
    """The question that is out."""

    preflight: Preflight
    plan_toml: bytes
    plan: Plan
    roster: Roster
    answers: dict[str, PreflightAnswer] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    """Silo to why there is no answer of it."""
    told_s: dict[str, float] = field(default_factory=dict)

    @property
    def waited_for(self) -> tuple[str, ...]:
        """Who may still answer."""
        return tuple(
            silo_id
            for silo_id in self.roster.silo_ids
            if silo_id not in self.answers and silo_id not in self.without
        )

    def status(self) -> admin_pb2.AskSilosResponse:
        """Everything that is known so far."""
        response = admin_pb2.AskSilosResponse(
            quorum=self.plan.rounds.ready_quorum(self.plan.secure_aggregation.n_min),
            complete=not self.waited_for,
            round=1,
        )
        for silo_id in self.roster.silo_ids:
            answer = self.answers.get(silo_id)
            if answer is None:
                response.verdicts.add(silo_id=silo_id, verdict=self.without.get(silo_id, ""))
            else:
                response.verdicts.add(
                    silo_id=silo_id,
                    verdict=answer.verdict.value,
                    rule=answer.rule,
                    reason=answer.reason,
                    offer=None if answer.offer is None else offer_to_proto(answer.offer),
                )
        return response


class Preflights:
    """The questions of one coordinator."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._asking: _Asking | None = None
        self._turn = asyncio.Lock()

    async def ask(
        self, plan_toml: bytes, submit_token: str, *, admin: str = ""
    ) -> AsyncGenerator[admin_pb2.AskSilosResponse]:
        """Ask every silo of the roster; what is known at first, and whenever it changes.

        The last one is complete.

        Raises:
            SubmitTokenError: The token is malformed.
            PlanError: It is no plan.
            RunError: There is no roster yet.
        """
        require_submit_token(submit_token)
        plan = read_plan(plan_toml)
        async with self._turn:
            asking = self._begin(plan_toml, plan, submit_token, admin)
            try:
                self._asking = asking
                async for status in self._collect(asking):
                    yield status
            finally:
                self._asking = None

    def _begin(self, plan_toml: bytes, plan: Plan, submit_token: str, admin: str) -> _Asking:
        context = self._context
        roster = context.store.rosters.current()
        if roster is None:
            raise RunError("no roster is published: chorale roster propose, sign and publish")
        preflight = Preflight(
            plan_sha256=hashlib.sha256(plan_toml).digest(),
            roster_sha256=roster.roster.sha256,
            submit_token=submit_token,
        ).sign(context.signing_key)
        context.audit.append(
            AuditEvent.PREFLIGHT_ASKED,
            plan=preflight.plan_sha256.hex(),
            token=submit_token,
            admin=admin,
        )
        return _Asking(preflight=preflight, plan_toml=plan_toml, plan=plan, roster=roster.roster)

    async def _collect(self, asking: _Asking) -> AsyncGenerator[admin_pb2.AskSilosResponse]:
        context = self._context
        give_up_s = context.clock() + ANSWER_WITHIN_S
        shown: admin_pb2.AskSilosResponse | None = None
        while True:
            late = context.clock() >= give_up_s
            for silo_id in asking.waited_for:
                if not self._is_there(silo_id):
                    asking.without[silo_id] = ABSENT
                elif late:
                    asking.without[silo_id] = NO_ANSWER
            status = asking.status()
            if status != shown:
                shown = status
                yield status
            if status.complete:
                return
            # Polls that wait see at a change alone that there is something to say.
            context.changed.notify()
            await context.changed.wait(_TICK_S)

    def _is_there(self, silo_id: str) -> bool:
        liveness = self._context.liveness
        return liveness.last_seen(silo_id) > 0 and liveness.alive(silo_id)

    # What silos are told, and say -----------------------------------------------------------------

    def question(self, silo_id: str, protocol: int) -> Preflight | None:
        """What to ask a silo at its poll; None if there is nothing, or not yet again.

        ``protocol`` is the newest one that it speaks.
        """
        asking = self._asking
        if asking is None or silo_id not in asking.waited_for:
            return None
        if protocol < (PREFLIGHTS if asking.plan.negotiation is None else OFFERS):
            asking.without[silo_id] = CANNOT_SAY
            self._context.changed.notify()
            return None
        now_s = self._context.clock()
        if 0 <= now_s - asking.told_s.get(silo_id, -AGAIN_S) < AGAIN_S:
            return None
        asking.told_s[silo_id] = now_s
        return asking.preflight

    def plan(self, plan_sha256: bytes) -> bytes | None:
        """The plan that is asked about, if it has this digest."""
        asking = self._asking
        if asking is None or asking.preflight.plan_sha256 != plan_sha256:
            return None
        return asking.plan_toml

    def receive(self, answer: PreflightAnswer) -> None:
        """Take an answer; whoever calls has made sure that it is of the silo that it names.

        Raises:
            PreflightAnswerError: It is none to the question that is out.
        """
        asking = self._asking
        if asking is None or answer.preflight_sha256 != asking.preflight.sha256:
            raise PreflightAnswerError("no such pre-flight is out")
        entry = asking.roster.entry(answer.silo_id)
        if entry is None:
            raise PreflightAnswerError(f"{answer.silo_id} is not in the roster that is asked")
        try:
            answer.verify(entry.verification_key)
        except ChainError as error:
            raise PreflightAnswerError(str(error)) from error
        known = asking.answers.get(answer.silo_id)
        if known is not None:
            if known != answer:
                raise PreflightAnswerError(f"{answer.silo_id} has answered otherwise before")
            return
        if answer.offer is not None:
            beyond = outside(asking.plan, answer.offer, now_unix_s=int(self._context.clock()))
            if beyond:
                raise PreflightAnswerError(f"{answer.silo_id} offers {'; '.join(beyond)}")
        asking.answers[answer.silo_id] = answer
        asking.without.pop(answer.silo_id, None)
        self._context.audit.append(
            AuditEvent.PREFLIGHT_ANSWERED,
            silo=answer.silo_id,
            plan=asking.preflight.plan_sha256.hex(),
            token=asking.preflight.submit_token,
            verdict=answer.verdict.value,
            rule=answer.rule,
            **({} if answer.offer is None else answer.offer.named()),
        )
        self._context.changed.notify()
