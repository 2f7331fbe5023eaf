"""One run's participation and credit, gathered from what the coordinator keeps and publishes.

The chain is verified first, against the roster in force: every signature and link. No silo is asked
anything, nothing is summed, and nothing is written.

Covered: a run that goes on, up to its newest record. Not covered: success by environment is taken
from what the coordinator wrote down when it opened a sum, not computed from the published sum anew;
what the figures mean (``federation/chain/credit.py``, ``federation/chain/group_credit.py``,
``server/credit/participation.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dp.noise.estimate import Estimate
from federation.chain.cohorts import CohortsOfSums, cohorts_of_sums
from federation.chain.credit import Credit, credit_of
from federation.chain.group_credit import (
    GroupRelease,
    SiloInGroups,
    silos_in_groups,
    total_of_groups,
)
from federation.chain.record import verify_chain
from federation.plan.read import read_plan
from ops.audit_log import read_log
from server.credit.groups import groups_of_run
from server.credit.participation import Participation, participation_of
from server.errors import NotPublishedError
from server.figures import RoundFigures
from server.store import Store
from server.store.blobs.storage import BlobStorage

__all__ = ["GroupCredit", "Report", "report_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCredit:
    """What the groups of a plan with groups added."""

    releases: tuple[GroupRelease, ...]
    total: Estimate
    silos: tuple[SiloInGroups, ...]
    untold: Mapping[int, str]
    """Rounds that nothing is told of, with the reason."""
    cohorts: CohortsOfSums
    """What the groups' sums open together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything that is told of a run."""

    run_id: str
    state: str
    mode: str
    rounds: int
    """That are over."""
    outcomes: Mapping[str, int]
    """How many rounds ended how."""
    head_sha256: str
    """Of the newest record, so that the report can be made again."""
    participation: tuple[Participation, ...]
    credit: Credit
    groups: GroupCredit | None
    """None of a plan without groups."""


def report_of(store: Store, blobs: BlobStorage, audit: Path, run_id: str) -> Report:
    """Gather a run's report.

    Raises:
        UnknownRunError: There is no such run.
        NotPublishedError: There is no roster, so nothing is signed.
        ChainError: The chain does not verify.
        AuditChainError: The audit log does not.
        OSError: The audit log cannot be read.
    """
    row = store.runs.get(run_id)
    plan = read_plan(row.plan)
    signed = store.rosters.current()
    if signed is None:
        raise NotPublishedError("no roster is published, so no record can be verified")
    records = store.records.list(run_id)
    head = verify_chain(records, signed.roster.coordinator_key, sums_per_round=plan.sums_per_round)
    # Read after the records: a line is in the log no later than the record that it goes with.
    content = read_log(audit)
    figures = [
        RoundFigures.from_json(each.figures_json)
        for each in store.rounds.finished(run_id)
        if each.round <= head.round
    ]
    credit = credit_of(
        records,
        {
            each.round: each.estimates
            for each in figures
            # Of a later step nothing is told, and of a sum that was not used neither.
            if each.step == 0 and each.outcome == "aggregated" and each.success
        },
    )
    last = {each.round: each.outcome for each in figures if each.outcome}
    for each in figures:
        # A round of which any step was applied is one that was.
        if each.outcome == "aggregated":
            last[each.round] = each.outcome
    outcomes: dict[str, int] = {}
    for outcome in last.values():
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    releases, untold = groups_of_run(
        plan, records, frozenset(credit.line), store.aggregations.list(run_id), blobs
    )
    groups = None
    if plan.aggregation.groups is not None:
        groups = GroupCredit(
            releases=releases,
            total=total_of_groups(releases),
            silos=silos_in_groups(releases),
            untold=untold,
            cohorts=cohorts_of_sums(
                group.silos for release in releases for group in release.groups
            ),
        )
    return Report(
        run_id=run_id,
        state=row.state.value,
        mode=plan.privacy.mode,
        rounds=head.round,
        outcomes=dict(sorted(outcomes.items())),
        head_sha256=head.sha256.hex(),
        participation=participation_of(store, run_id, records, content),
        credit=credit,
        groups=groups,
    )
