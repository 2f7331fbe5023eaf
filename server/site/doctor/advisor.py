"""The doctor's step about the advisor: one question of a round that is none, and what came back.

Covered: an endpoint that is not reached, refuses, is slow or answers with no proposal; a server
that takes no tools. Not covered: whether what it proposes is wise.
"""

from __future__ import annotations

import asyncio
from typing import Final

from federation.advice.conversation import TOOL_CALLS, Budget, Failure
from federation.advice.proposal import Limits, Proposal
from federation.advice.record import replay
from federation.advice.state import RoundState, SiloState
from federation.plan.tables import SelectionAdviceSection
from federation.selection.decided import why_none
from ops.doctor.checkup import Verdict, ok, warning
from server.advisor.configured import configured_advisor
from server.config import CoordinatorConfig

__all__ = ["judge_advisor"]

LONGEST_S: Final = 120
"""As long as a plan may wait."""
_SILOS: Final = tuple(f"silo-{number}" for number in range(1, 7))
_FIXES: Final = {
    Failure.TIMEOUT: "no plan waits so long: take a smaller model, or a faster machine for it",
    Failure.UNREACHABLE: "start the server, or correct advisor_url",
    Failure.TLS: "the server's certificate is not trusted here, or is for another name",
    Failure.HTTP_STATUS: "look into the server's log; one that takes no tools refuses them: set "
    "advisor_tools = false; one that knows no such model: advisor_model; an unknown key: "
    "advisor_key_file",
}
_OTHER_FIX: Final = (
    "rounds go by the plan's other policy; a server that holds answers to a JSON schema "
    "(response_format) keeps small models to one"
)


def judge_advisor(config: CoordinatorConfig) -> Verdict:
    """Ask it once, as a round would, and say what that cost."""
    endpoint = configured_advisor(config)
    if endpoint is None:
        return ok("no advisor is configured")
    # Its packages are there where an advisor is.
    from server.advisor.consult import consult

    budget = Budget(tool_calls=TOOL_CALLS if endpoint.takes_tools else 0, seconds=LONGEST_S)
    record = asyncio.run(consult(_question(), budget, endpoint, endpoint.model))
    outcome = replay(record)
    seconds = sum(turn.milliseconds for turn in record.turns) / 1000
    cost = (
        f"{len(record.turns)} requests, {sum(turn.tokens for turn in record.turns)} tokens, "
        f"{seconds:.1f} s"
    )
    if not isinstance(outcome, Proposal):
        return warning(
            f"{endpoint.model} made no proposal: {why_none(outcome)} ({cost})",
            _FIXES.get(outcome.failure, _OTHER_FIX) if outcome.failure else _OTHER_FIX,
        )
    usual_s = SelectionAdviceSection().seconds
    if seconds >= usual_s:
        return warning(
            f"{endpoint.model} proposes, and takes long: {cost}",
            f"a plan waits {usual_s} s; give it more as seconds in [selection.advice]",
        )
    return ok(f"{endpoint.model} made a proposal of the form that rounds take: {cost}")


def _question() -> RoundState:
    limits = Limits(
        may_choose=True,
        names_silos=False,
        least=4,
        alive=_SILOS,
        ready_deadline_s=None,
        local_epochs=None,
        may_stop=False,
        may_diagnose=False,
    )
    silos = tuple(SiloState(id=silo_id, families=1, lost_in_a_row=0) for silo_id in _SILOS)
    return RoundState(round=1, rounds=10, limits=limits, silos=silos, history=())
