"""Judging on held-out tasks what a silo adopted, and what is its own beside it.

Invariants:

1. Figures go to the silo's own evaluation file. No message to the coordinator and no masked metric
   is made of them, so neither the global adapter's figures nor the personal one's leave the silo.
2. What belongs to everyone is judged and kept first; the silo's own adapter, which may be missing
   or damaged, is judged after it and costs it nothing. Their rows are told apart by ``personal``.
3. An adapter is judged once in a run, across restarts.
4. Where the silo asks for a choice of the adapter to use, it comes last, by tasks that are not
   judged; what was chosen is then judged on those that are, where it is neither the shared adapter
   nor the silo's own, whose figures stand already.

Covered: when to judge, judging, choosing, keeping the rows. Not covered: a crash between the
judgements, after which the personal adapter, or the choice, of that round has no figures; how long
judging takes, which the next round waits for; what the rows come to
(``silo_agent/views/judgement.py``, ``recommendation.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from evolution.methods.evolver import Evaluation, EvaluationRow, Evolver
from federation.chain.record import AdapterRecord
from federation.plan.plan import Plan
from ops.tracing.spans import spanned
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.follow.chain import Head
from silo_agent.local_work.plan_terms import evaluations_of
from silo_agent.metrics import SiloMetrics

__all__ = ["Judge", "choose_and_keep", "judge_and_keep"]

_JUDGED_ALREADY: Final = frozenset({"shared", "own"})


class Judge:
    """Judges what a daemon adopts."""

    def __init__(self, *, config: SiloConfig, store: LocalStore, metrics: SiloMetrics) -> None:
        """Read what was judged before; the metrics are for the time that judging takes.

        Raises:
            LocalStoreError: The evaluation file is damaged.
        """
        self._config = config
        self._store = store
        self._metrics = metrics
        # A restarted silo must not report the same adapter twice.
        self._judged = {(row["run"], int(row["round"])) for row in store.evaluations()}

    def take(self, record: AdapterRecord, plan: Plan) -> bool:
        """Whether the plan wants an adopted adapter judged; said once for each."""
        key = (record.run_id, record.round)
        due = record.round % plan.evaluate.every_rounds == 0 or record.round == plan.rounds.count
        if plan.evaluate.held_out == 0 or not self._config.evaluate or not due:
            return False
        unfinished = record.round > 0 and not plan.is_last_step(record.step)
        if unfinished or key in self._judged:
            return False
        self._judged.add(key)
        return True

    @spanned("evaluate")
    def judge(self, method: Callable[[], Evolver], head: Head, plan: Plan) -> None:
        """Judge an adopted adapter as the plan says, and the silo's own where it keeps one.

        Where the silo asks for it, one of them, or something between, is chosen as well.

        Raises:
            EvolveError: The method cannot judge it.
            LocalStoreError: The figures cannot be kept.
        """
        record, evolver = head.record, method()
        started = time.monotonic()
        asked = evaluations_of(
            self._config,
            plan,
            round_number=record.round,
            adapter=head.tensors,
            adapter_sha256=record.adapter_sha256.hex(),
        )
        try:
            judge_and_keep(evolver, asked, store=self._store, run_id=record.run_id)
            # With one evaluation there is no adapter of the silo's own to choose.
            if len(asked) > 1:
                choose_and_keep(evolver, asked[0], store=self._store, run_id=record.run_id)
        finally:
            self._metrics.observe_phase("evaluate", time.monotonic() - started)


def judge_and_keep(
    evolver: Evolver, asked: Sequence[Evaluation], *, store: LocalStore, run_id: str
) -> None:
    """Judge adapters one after the other, each kept before the next is begun.

    Raises:
        EvolveError: The method cannot judge one of them.
        LocalStoreError: The figures cannot be kept.
    """
    for evaluation in asked:
        store.append_evaluation(
            run_id=run_id,
            round_number=evaluation.round,
            adapter_sha256=evaluation.adapter_sha256,
            personal=evaluation.personal,
            rows=[_counts(row) for row in evolver.evaluate(evaluation)],
        )


def choose_and_keep(evolver: Evolver, asked: Evaluation, *, store: LocalStore, run_id: str) -> None:
    """Choose what this silo should use, if it asks for a choice, and judge what was chosen.

    ``asked`` is the evaluation of the shared adapter; no task of it is chosen by.

    Raises:
        EvolveError: The method cannot compare the candidates.
        LocalStoreError: The figures cannot be kept.
    """
    found = evolver.choose(asked)
    if found is None:
        return
    store.append_choice(
        {
            "run": run_id,
            "round": asked.round,
            "adapter_sha256": asked.adapter_sha256,
            "temperature": asked.temperatures[0],
            **found.row(),
        }
    )
    chosen = {name: found.chosen_in(name) for name in found.members}
    chosen = {name: one for name, one in chosen.items() if one.kind not in _JUDGED_ALREADY}
    if chosen:
        rows = evolver.evaluate(replace(asked, chosen=chosen))
        store.append_evaluation(
            run_id=run_id,
            round_number=asked.round,
            adapter_sha256=asked.adapter_sha256,
            personal=True,
            chosen=True,
            rows=[_counts(row) for row in rows],
        )


def _counts(row: EvaluationRow) -> dict[str, Any]:
    """A row as it is kept: which tasks were solved is in no figure that is made of it."""
    kept = asdict(row)
    del kept["solved"]
    return kept
