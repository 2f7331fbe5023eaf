"""Asks the silos about a plan, and once more about what their counter-offers make of it.

Ordered invariants:

1. There are two rounds at most: one about the plan, and one about the amended plan if there is one.
   What is offered in the second is shown and not taken up.
2. A plan is amended by verified offers alone, for all silos alike, and only inside the ranges that
   it gives (``federation/plan/negotiation.py``). The amended plan is a plan like any other: every
   silo judges it anew, and the admin starts it or does not.
3. What was amended, or why nothing was, is in the audit log before anybody is asked again.

No model decides anything here.

Covered: both rounds of one asking. Not covered: single questions and answers (``preflight.py``).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from chorale.v1 import admin_pb2
from federation.plan.negotiation import Amended, NotAmended, amend
from federation.wire import offer_from_proto
from server.audit import AuditEvent
from server.conductor.preflight import Preflights
from server.context import RunContext

__all__ = ["negotiated"]


async def negotiated(
    context: RunContext,
    preflights: Preflights,
    plan_toml: bytes,
    submit_token: str,
    *,
    admin: str,
) -> AsyncGenerator[admin_pb2.AskSilosResponse]:
    """What is known of both rounds, whenever it changes; the last status of each is complete.

    Raises:
        SubmitTokenError: The token is malformed.
        PlanError: It is no plan.
        RunError: There is no roster yet.
    """
    status = admin_pb2.AskSilosResponse()
    async with aclosing(preflights.ask(plan_toml, submit_token, admin=admin)) as statuses:
        async for status in statuses:
            if not status.complete:
                yield status
    found = await _amended(context, plan_toml, status)
    if isinstance(found, NotAmended):
        status.not_amended.extend(found.problems)
    _note(context, found, plan_toml, submit_token, admin)
    yield status
    if not isinstance(found, Amended):
        return
    async with aclosing(preflights.ask(found.plan_toml, submit_token, admin=admin)) as statuses:
        async for status in statuses:
            status.round = 2
            status.amended_plan = found.plan_toml
            for move in found.moves:
                status.moves.add(key=move.key, before=move.before, after=move.after)
            yield status


async def _amended(
    context: RunContext, plan_toml: bytes, status: admin_pb2.AskSilosResponse
) -> Amended | NotAmended | None:
    """What comes of the offers of the first round; None where there are none."""
    offers = {
        one.silo_id: offer_from_proto(one.offer) for one in status.verdicts if one.HasField("offer")
    }
    if not offers:
        return None
    now_unix_s = int(context.clock())
    # Some hundredths of a second of accounting, in which polls are answered.
    return await asyncio.to_thread(amend, plan_toml, offers, now_unix_s=now_unix_s)


def _note(
    context: RunContext,
    found: Amended | NotAmended | None,
    plan_toml: bytes,
    submit_token: str,
    admin: str,
) -> None:
    if found is None:
        return
    about = {
        "plan": hashlib.sha256(plan_toml).hexdigest(),
        "token": submit_token,
        "admin": admin,
    }
    if isinstance(found, Amended):
        context.audit.append(
            AuditEvent.PLAN_AMENDED,
            **about,
            amended=hashlib.sha256(found.plan_toml).hexdigest(),
            moves="; ".join(map(str, found.moves)),
        )
    else:
        context.audit.append(AuditEvent.PLAN_NOT_AMENDED, **about, reason="; ".join(found.problems))
