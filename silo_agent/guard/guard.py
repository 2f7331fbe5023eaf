"""The guard: judges what a round ended with, and serves it only if it passed.

Ordered invariants:

1. A silo adopts as without a guard. What is decided here is what this site's own server reads; no
   message to the coordinator is made of it. Only where a plan asks for vetoes does the silo
   contribute zeros, and its veto under noise, instead of working with what it refuses.
2. Nothing is served that was not judged by this site's own settings, and nothing whose judging
   failed. The adapter that passed last stays; before the first there is none.
3. A verdict is on disk before the link to its adapter is switched, and the adapter before its
   verdict. What is served follows from the verdicts, so whatever a crash cut short is done by the
   next start, or when the head is looked at again.
4. The base plays once in a run, an adapter once for its bytes: figures are read again, not played.
5. Whatever fails here ends nothing: it is noted as a verdict and logged, and the adapter is not
   served.

The initial adapter of a run is neither judged nor served: nobody has learned anything in it.

Covered: restarts at any point, rollbacks, several runs one after the other. Not covered: the silo's
personal adapter and factors that stay in it (of these the card says that the adapter is
incomplete); how long judging takes, which the next round waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from dp.ledger.counts import RunDebits
from evolution.errors import EnvironmentFailureError, VerdictError
from evolution.guard.judging import Adopted, Judging
from evolution.guard.options import GuardSection, Outcome
from evolution.guard.panel import Plays
from evolution.guard.rule import standing
from evolution.guard.verdict import Verdict
from evolution.methods.evolver import Evolver
from federation.adapter.card import render_card
from federation.chain.card import card_of, provenance_of
from federation.chain.record import AdapterRecord
from federation.plan.plan import Plan
from ops.logs.logger import get_logger
from ops.tracing.spans import spanned
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError, GuardError, LocalStoreError
from silo_agent.follow.chain import Head
from silo_agent.guard.shelf import Shelf, name_of
from silo_agent.metrics import SiloMetrics

__all__ = ["Guard", "panel_families"]

log = get_logger(__name__)


class Guard:
    """See the module; its methods are called on the thread that works, but for ``take``."""

    def __init__(
        self,
        config: SiloConfig,
        section: GuardSection,
        *,
        store: LocalStore,
        metrics: SiloMetrics,
        federation: str,
        debits_of: Callable[[str], RunDebits],
    ) -> None:
        """Read what was found before, and serve what it says.

        ``federation`` and ``debits_of``, what a run was charged here, are for the card.

        Raises:
            LocalStoreError: The file of verdicts is damaged.
        """
        self._config, self._section = config, section
        self._store, self._metrics = store, metrics
        self._federation, self._debits_of = federation, debits_of
        try:
            self._judging = Judging(rows=store.guard_rows(), keep=self._write)
        except VerdictError as error:
            raise LocalStoreError(str(error)) from error
        self._shelf = None if section.serve_dir is None else Shelf(section.serve_dir)
        self._taken: set[tuple[str, int]] = set()
        self._serve()
        if verdicts := self._judging.verdicts:
            self._show(verdicts[-1])

    @classmethod
    def of(
        cls,
        config: SiloConfig,
        *,
        store: LocalStore,
        metrics: SiloMetrics,
        federation: str,
        debits_of: Callable[[str], RunDebits],
    ) -> Self | None:
        """The guard that silo.toml asks for; None where it has no ``[guard]``.

        Raises:
            LocalStoreError: The file of verdicts is damaged.
        """
        if config.guard is None:
            return None
        return cls(
            config,
            config.guard,
            store=store,
            metrics=metrics,
            federation=federation,
            debits_of=debits_of,
        )

    def take(self, record: AdapterRecord, plan: Plan) -> bool:
        """Whether an adopted adapter is to be judged; said once for each in a process."""
        key = (record.run_id, record.round)
        if record.round == 0 or not plan.is_last_step(record.step) or key in self._taken:
            return False
        self._taken.add(key)
        return True

    def vetoes(self, record: AdapterRecord, plan: Plan) -> bool:
        """Whether a plan that asks for vetoes hears one against the adapter that its round has.

        What could not be judged is no reason for one, and neither is the initial adapter.
        """
        if plan.vetoes is None:
            return False
        refused = record.adapter_sha256.hex()
        if not self._judging.refuses(record.run_id, refused):
            return False
        log.warning("guard_vetoes", run=record.run_id, adapter=refused[:12])
        return True

    @spanned("guard")
    def judge(self, method: Callable[[], Evolver], head: Head, plan: Plan) -> None:
        """Judge an adopted adapter, note the verdict, and serve the adapter if it passed.

        Raises:
            LocalStoreError: The verdict cannot be kept; the adapter is not served then.
        """
        started = time.monotonic()
        try:
            verdict = self._verdict(method, head)
            if verdict.outcome is Outcome.PASSED:
                self._put(head, plan)
            self._keep(verdict)
            self._serve()
            self._show(verdict)
        finally:
            self._metrics.observe_phase("guard", time.monotonic() - started)

    def _verdict(self, method: Callable[[], Evolver], head: Head) -> Verdict:
        record = head.record
        plays = Plays(
            section=self._section,
            seed=self._config.seed,
            base_sha256=record.base_model_sha256.hex(),
            episodes_at_once=self._config.rollout.episodes_at_once,
        )
        adopted = Adopted(
            run=record.run_id,
            round=record.round,
            adapter_sha256=record.adapter_sha256.hex(),
            restored_round=record.restored_round,
            tensors=head.tensors,
        )
        try:
            return self._judging.verdict(method, adopted, plays)
        except LocalStoreError:
            raise
        except Exception as error:  # Whatever it was, the round goes on: see invariant 5.
            self._metrics.count_error(GuardError.__name__)
            log.exception("guard_failed", run=record.run_id, round=record.round, reason=error)
            return self._judging.failed(adopted, plays)

    def _put(self, head: Head, plan: Plan) -> None:
        """Write an adapter that passed where it can be served from."""
        record = head.record
        if self._shelf is None:
            return
        debits = self._debits_of(record.run_id)
        card = card_of(
            record,
            plan,
            federation=self._federation,
            releases=debits.releases,
            first_steps=debits.first_steps,
            trainings=debits.trainings,
        )
        try:
            self._shelf.put(
                name_of(record.round, record.adapter_sha256.hex()),
                head.tensors,
                plan=plan,
                provenance=provenance_of(record),
                card=render_card(card),
            )
        except GuardError as error:
            self._not_served(error)

    def _write(self, row: dict[str, Any]) -> None:
        self._store.append_guard(row)

    def _keep(self, verdict: Verdict) -> None:
        if self._judging.keep(verdict):
            log.info(
                "guard_verdict",
                run=verdict.run,
                round=verdict.round,
                adapter=verdict.adapter_sha256[:12],
                outcome=verdict.outcome.value,
            )

    def _serve(self) -> None:
        """Point the link to the adapter that the verdicts speak for, as far as it is there."""
        if self._shelf is None:
            return
        shelf = self._shelf
        chosen = next(
            (
                verdict
                for verdict in standing(self._judging.verdicts)
                if shelf.holds(name_of(verdict.round, verdict.adapter_sha256))
            ),
            None,
        )
        try:
            shelf.point(None if chosen is None else name_of(chosen.round, chosen.adapter_sha256))
            shelf.prune(keep=self._section.keep)
        except GuardError as error:
            self._not_served(error)
            return
        self._metrics.show_served(None if chosen is None else chosen.round)

    def _not_served(self, error: GuardError) -> None:
        self._metrics.count_error(GuardError.__name__)
        log.error("guard_not_served", reason=error)

    def _show(self, verdict: Verdict) -> None:
        self._metrics.show_verdict(verdict.outcome)
        catalogue = self._config.catalogue()
        for panel in verdict.panels:
            self._metrics.show_panel(
                # A panel of an earlier silo.toml may be of none that there is now.
                catalogue.family(panel.environment) if panel.environment in catalogue else "",
                adapter=(panel.adapter.success, panel.adapter.violating),
                base=(panel.base.success, panel.base.violating),
                drift=panel.drift,
                drift_threshold=panel.drift_threshold,
            )


def panel_families(config: SiloConfig) -> tuple[str, ...]:
    """The public families of the guard's panels, which figures on the probes go by.

    Raises:
        ConfigError: An installed package's environment cannot be used.
    """
    panels = () if config.guard is None else config.guard.panels
    try:
        return tuple(config.catalogue().family(panel.environment) for panel in panels)
    except EnvironmentFailureError as error:
        raise ConfigError(str(error)) from error
