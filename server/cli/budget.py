"""``chorale budget``: what runs have cost in privacy, and where each silo's ledger stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dp.config import ADJACENCY
from ops.cli.envelope import Format, Output, say, show_result, succeed
from server.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from chorale.v1 import admin_pb2

__all__ = ["budget"]


def budget(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """What every run has cost in privacy, and the newest head of each silo's ledger.

    A run has one ε for each kind of unit that it charges: a task or a user at record level, a whole
    silo in mode silo. "spent" is what the attempts so far cost by the plan, in mode record_local
    with one training for each round whose task went out, "planned" what the plan may cost at most,
    spare attempts included, "cap" what the plan allows. All of it follows from the plan, from how
    many attempts reached the upload and from how many rounds began: no silo's data, and no silo's
    own ledger. That ledger is what binds: it holds more where a silo trained a round again, and
    what a silo has spent in all its runs, and its own cap, only its operator sees: chorale-silo
    budget.

    A head is the number and digest of a ledger's newest entry, as the silo signed it. A silo whose
    ledger is behind its head here was restored from an old copy, and is left out until the newer
    ledger is back.
    """
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect, plain

        with connect(data) as stub:
            answer = stub.GetBudget(admin_pb2.GetBudgetRequest(), timeout=CALL_TIMEOUT_S)
        for run in answer.runs:
            show_result(output, *_described(run))
        if not answer.runs:
            say("no runs yet: chorale run start PLAN")
        if answer.heads:
            show_result(output, "", f"{'silo':<24} {'ledger entry':>12}  {'digest':<16}  signed in")
        for head in answer.heads:
            at = head.identity
            show_result(
                output,
                f"{head.silo_id:<24} {head.seq:>12}  {head.sha256.hex()[:16]}  "
                f"{at.run_id} round {at.round} step {at.step} attempt {at.attempt}",
            )
        succeed(output, plain(answer))


def _described(run: admin_pb2.RunBudget) -> Iterator[str]:
    yield (
        f"{run.run_id}  mode {run.mode}  {run.releases} of {run.charged_releases} charged releases"
    )
    if run.mode == "none":
        yield "  nothing is protected: ε has no bound from the first release on"
        return
    for unit in run.units:
        yield (
            f"  {unit.unit:<5} ε {unit.spent:.4g} spent, {unit.planned:.4g} planned, "
            f"cap {run.epsilon_cap:.4g}, at δ = {run.delta:g} ({ADJACENCY})"
        )
