"""The runs this silo has heard of, as its operator sees them.

Invariant: nothing is decided here; every word comes from the notes of the daemon, the approvals,
the adopted heads and the ledger, read beside a daemon that may run.

Covered: what waits, what was decided and by what, what it costs at most and was charged. Not
covered: the round that is under way, which the coordinator shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dp.accounting.charge import UnitKind
from dp.accounting.compose import Epsilon, shown_epsilon_of
from dp.config import ADJACENCY
from federation.plan.charges import charges_of_run
from silo_agent.books.budget import read_budget
from silo_agent.books.departure import Departure
from silo_agent.books.heard_runs import NOT_INVITED, HeardRun, HeardRuns
from silo_agent.books.local_store import ChainHead, LocalStore
from silo_agent.errors import LocalStoreError
from silo_agent.policy.approvals import Approvals, Standing, Word
from silo_agent.policy.document import SUITES, Policy
from silo_agent.policy.policy import ACCEPTED, APPROVAL_RULE

__all__ = ["WAITING", "ListedRun", "approving", "list_runs", "suite_name"]

WAITING: Final = "waiting for approval"
_BY_OPERATOR: Final = "refused_by_operator"
_LEAVING: Final = "leaving"
_OLD_SUITE: Final = "v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRun:
    """One run."""

    run: str
    """Its id."""
    name: str
    """What its plan calls it; empty where the plan cannot be read."""
    plan_sha256: str
    """Of the plan it asked for last."""
    state: str
    """``waiting for approval``, ``approved``, ``refused``, ``taking part``, ``not invited``,
    ``finished``, ``over``, ``left`` or ``heard of``; over is a run that ended otherwise than by its
    last round here."""
    rule: str
    """The rule that refused; empty where none did."""
    decided_by: str
    """Who approved or refused it by hand, and when; empty where nobody did."""
    round: int
    """Of the newest task."""
    rounds: int
    """Of the plan; 0 where it cannot be read."""
    rounds_taken_part: int
    """In which this silo's upload is."""
    restored_round: int | None
    """The round whose adapter the adopted head is, where that is a rollback."""
    epsilons_at_most: Mapping[UnitKind, Epsilon]
    """What the whole run may cost, spare attempts included."""
    epsilons_charged: Mapping[UnitKind, Epsilon]
    """What it was charged so far, as if it were the only run."""
    hardware: tuple[str, ...]
    """How its work is fitted to this machine."""
    suite: str
    """Of its masks: ``v1``, which is not post-quantum, or ``v2``."""
    cohort_may_vary: bool
    """Whether who approved it lets its cohorts vary without noise."""

    @property
    def readable(self) -> bool:
        """Whether the plan can be read here."""
        return self.rounds > 0

    @property
    def approving(self) -> str:
        """The command that approves the plan shown here, and no other."""
        return approving(self.run, self.plan_sha256)

    def as_data(self) -> dict[str, Any]:
        """For the envelope."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        state = f"{self.state} by rule {self.rule}" if self.rule else self.state
        of = f" of {self.rounds}" if self.rounds else ""
        part = f"took part in {self.rounds_taken_part}"
        lines = [
            f"run {self.run}: {state}; round {self.round}{of}, {part}; plan {self.plan_sha256[:12]}"
        ]
        if self.suite == _OLD_SUITE:
            lines.append("  suite v1, not post-quantum: what is recorded of it can be opened later")
        if self.cohort_may_vary:
            lines.append("  its cohorts may vary without noise, if every silo says so")
        if self.restored_round is not None:
            lines.append(f"  back at the adapter of round {self.restored_round}")
        if self.decided_by:
            lines.append(f"  decided by {self.decided_by}")
        lines += [
            f"  epsilon for each {unit}: {self.epsilons_charged.get(unit, Epsilon(0.0))} charged, "
            f"at most {cost} in all ({ADJACENCY})"
            for unit, cost in self.epsilons_at_most.items()
        ]
        if self.state == WAITING:
            lines += [
                f"  next: chorale-silo preview {self.run}; then chorale-silo refuse {self.run}, or",
                f"  {self.approving}",
            ]
        return lines


def approving(run_id: str, plan_sha256: str) -> str:
    """The command that approves one plan of a run.

    The digest is in full: a run can come back with another plan at any time.
    """
    return f"chorale-silo approve {run_id} --plan-sha256 {plan_sha256}"


def suite_name(number: int) -> str:
    """What plans and policies call the suite of this number."""
    return next((name for name, known in SUITES.items() if known == number), str(number))


def list_runs(data_dir: Path, policy: Policy) -> tuple[ListedRun, ...]:
    """Every run, in the order in which this silo heard of them.

    Raises:
        LocalStoreError: The notes or the approvals cannot be read.
        PrivacyError: The ledger cannot be read.
    """
    heard = HeardRuns(data_dir)
    approvals = Approvals(data_dir)
    heads = LocalStore(data_dir).chain_heads()
    privacy = policy.privacy
    budget = read_budget(data_dir, delta=privacy.delta, caps=privacy.caps())
    charged = {row.run: row.epsilons for row in budget.runs}
    left = Departure(data_dir).mark() is not None
    manual = policy.policy.approval == "manual"
    listed = []
    for run in heard.all():
        try:
            plan = heard.plan(run)
        except LocalStoreError:
            plan = None
        rounds = 0 if plan is None else plan.rounds.count
        standing = approvals.standing(run.run_id, bytes.fromhex(run.plan_sha256), manual=manual)
        head = heads.get(run.run_id)
        state, rule = _state(run, standing, head, rounds=rounds, left=left)
        listed.append(
            ListedRun(
                run=run.run_id,
                name="" if plan is None else plan.name,
                plan_sha256=run.plan_sha256,
                state=state,
                rule=rule,
                decided_by=_decided(approvals.about(run.run_id)),
                round=run.round,
                rounds=rounds,
                rounds_taken_part=run.rounds_taken_part,
                restored_round=None if head is None else head.restored_round,
                epsilons_at_most={}
                if plan is None
                else shown_epsilon_of(charges_of_run(plan), privacy.delta),
                epsilons_charged=charged.get(run.run_id, {}),
                hardware=run.hardware,
                suite=suite_name(run.suite),
                cohort_may_vary=approvals.cohort_may_vary(
                    run.run_id, bytes.fromhex(run.plan_sha256)
                ),
            )
        )
    return tuple(listed)


def _state(
    run: HeardRun, standing: Standing, head: ChainHead | None, *, rounds: int, left: bool
) -> tuple[str, str]:
    """The state, and the rule behind it if it is a refusal."""
    finished = rounds > 0 and head is not None and head.round >= rounds
    by_rule = run.rule not in {
        "", ACCEPTED, APPROVAL_RULE, NOT_INVITED, _LEAVING, _BY_OPERATOR
    }  # fmt: skip
    approved = "approved" if standing is Standing.APPROVED else "heard of"
    cases = (
        (finished, "finished", ""),
        (left, "left", ""),
        (standing is Standing.REFUSED, "refused", _BY_OPERATOR),
        (by_rule, "refused", run.rule),
        (run.over, "over", ""),
        (standing is Standing.PENDING, WAITING, ""),
        (run.rule == ACCEPTED, "taking part", ""),
        (run.rule == NOT_INVITED, "not invited", ""),
    )
    return next(((state, rule) for holds, state, rule in cases if holds), (approved, ""))


def _decided(word: Word | None) -> str:
    if word is None:
        return ""
    what = "approved" if word.approved else "refused"
    when = datetime.fromtimestamp(word.at_unix_s, tz=UTC)
    return f"{word.by}: {what} plan {word.plan_sha256.hex()[:12]} at {when:%F %R} UTC"
