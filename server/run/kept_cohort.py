"""Whom a run without noise may still ask: sums of cohorts that vary can be subtracted.

Without noise the sum of one cohort minus that of another tells about the silos that are in one of
them only. So each silo signs survivors only if all of them were in the last sum without noise that
it signed, over rounds and runs, unless every silo lets cohorts vary. Here an honest coordinator
asks nobody with whom the others would not go on.

Ordered invariants:

1. P is U3 of the newest sum without noise whose survivors were declared, of whatever run: whoever
   saw them may have signed, whether or not its word came back. A cohort is part of it, and so are
   all cohorts before a first sum is declared part of the roster.
2. If all of P said in this run's R0 that cohorts may vary, others are asked again, unless they said
   in this run that they may not. What they do not say until they are in it, R0 shows: a U1 that is
   more than P goes on only if all of it says so.
3. It follows from what is durable, so a coordinator that restarts does the same.

Covered: rounds, runs, rollbacks, suites v1 (whose bundles never say so) and v2. Not covered: sums
of another coordinator, and several data sets of one silo, which only the silo knows.
"""

from __future__ import annotations

from collections.abc import Collection

from dp.config import Mode
from federation.errors import PlanError
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from secagg.errors import Check, VerificationError
from secagg.messages import KeyBundle
from server.figures import Phase
from server.store import Store

__all__ = ["KeptCohort"]


class KeptCohort:
    """The silos that one run may ask."""

    def __init__(self, run_id: str, plan: Plan, store: Store) -> None:
        self._run_id = run_id
        self._noiseless = plan.spec.mode is Mode.NONE
        self._store = store

    def of(self, silo_ids: Collection[str]) -> frozenset[str]:
        """Who of the roster may be asked."""
        kept, everyone = self._newest(), frozenset(silo_ids)
        if kept is None:
            return everyone
        said = {
            row.bundle.silo_id: row.bundle.cohort_may_vary
            for row in self._store.heads.list()
            if row.identity.run_id == self._run_id
        }
        members = [said[silo_id] for silo_id in kept & everyone if silo_id in said]
        if not members or not all(members):
            return everyone & kept
        return frozenset(s for s in everyone if s in kept or said.get(s, True))

    def require(self, bundles: Collection[KeyBundle]) -> None:
        """Go on from R0 only with silos that would sign the survivors.

        Raises:
            VerificationError: cohort_grew.
        """
        kept = self._newest()
        if kept is None:
            return
        strangers = sorted({bundle.silo_id for bundle in bundles} - kept)
        if strangers and not all(bundle.cohort_may_vary for bundle in bundles):
            raise VerificationError(
                Check.COHORT_GREW,
                f"{', '.join(strangers)} not in the newest sum without noise, and not every silo "
                "lets cohorts vary",
            )

    def _newest(self) -> frozenset[str] | None:
        """P; None before the first sum without noise, and for a run with noise."""
        if not self._noiseless:
            return None
        runs = [row.run_id for row in self._store.runs.list() if _is_noiseless(row.plan)]
        # Silos keep P before they send what they signed, so none of it need be here.
        declared = self._store.messages.newest_declared(Phase.MASKED_INPUT.value, runs)
        if declared is None:
            return None
        row = self._store.aggregations.get(declared)
        return None if row is None else frozenset(row.survivors)


def _is_noiseless(plan: bytes) -> bool:
    try:
        return read_plan(plan).spec.mode is Mode.NONE
    except PlanError:
        # A run of an earlier version, whose plan would be refused now.
        return False
