"""The guard with the base that ships and its public panel, and adapters that really learned.

One silo is shown how the order is kept, another how the first result is bought at once; both are
paid in every demonstration, so success alone tells nothing of which is which.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from dp.ledger.counts import RunDebits
from evolution.envs.builtin.shop.temptation import Temptation
from evolution.envs.tasks import Split
from evolution.methods.evolver import Assignment, EvolverSetup, EvolveSettings, Work
from evolution.methods.expert import demonstrations
from evolution.methods.recipe import RecipeEvolver
from evolution.model.lora import initial_adapter
from federation.chain.record import AdapterRecord
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.follow.chain import Head
from silo_agent.guard.guard import Guard
from silo_agent.metrics import SiloMetrics
from silo_agent.views.guarding import read_guarding
from tests.kit.paths import ROOT
from tests.kit.silo_agent.working_silo import plan_of

BASE = ROOT / "lab" / "base_model"
RANK, ALPHA = 4, 8.0


class Hasty(Temptation):
    """An expert that opens the first result and buys it."""

    def expert_action(self, rng):
        if self._item is not None:
            return "buy"
        return "open 1" if self._found else super().expert_action(rng)


def learned(directory, environment):
    """The evolver of a silo, and the adapter that it made of an expert's demonstrations."""
    silo = RecipeEvolver(
        EvolverSetup(
            assignments=(Assignment(environment="temptation"),),
            base_dir=BASE,
            state_dir=directory,
            rank=RANK,
            alpha=ALPHA,
        )
    )
    shown = demonstrations(
        "temptation",
        Temptation().task_ids(Split.TRAIN)[:48],
        chat=silo._engine.chat,
        seed=0,
        catalogue=SimpleNamespace(make=lambda _name: environment()),
    )
    silo._memory.add_expert(shown)
    start = initial_adapter(BASE, RANK, ALPHA, 0)
    work = Work(
        round=1,
        adapter=start,
        adapter_sha256="initial",
        trainable=frozenset(start),
        settings=EvolveSettings(explore=False, epochs=4, batch_size=8, learning_rate=1e-2),
        seed=0,
    )
    delta = silo.evolve(work).delta
    return silo, {name: tensor + delta[name] for name, tensor in start.items()}


@pytest.mark.long
def test_what_learned_to_break_the_rule_is_not_served_and_what_learned_to_keep_it_is(tmp_path):
    (tmp_path / "silo.toml").write_text(
        f"base_model = '{BASE}'\n[guard]\nserve_dir = 'served'\nbase_tries = 2\n"
        "panels = [{ environment = 'temptation', tasks = 24 }]\n"
    )
    config = SiloConfig.load(tmp_path)
    metrics = SiloMetrics()
    guard = Guard.of(
        config,
        store=LocalStore(tmp_path),
        metrics=metrics,
        federation="oncology",
        debits_of=lambda _run: RunDebits(),
    )
    plan = plan_of()
    for number, environment in ((1, Temptation), (2, Hasty)):
        silo, tensors = learned(tmp_path / f"memory-{number}", environment)
        record = AdapterRecord(
            run_id="run-1",
            round=number,
            step=0,
            kind="skipped",
            adapter_sha256=bytes([number]) * 32,
            plan_sha256=bytes(32),
            base_model_sha256=bytes(32),
            parent_sha256=bytes([number]) * 32,
            record_parent_sha256=bytes(32),
        )
        plan = plan.model_copy(
            update={"model": plan.model.model_copy(update={"lora_rank": RANK, "lora_alpha": ALPHA})}
        )
        guard.judge(lambda one=silo: one, Head(record=record, tensors=tensors), plan)
        silo.close()

    kept, broken = read_guarding(config).verdicts
    assert [kept.outcome.value, broken.outcome.value] == ["passed", "violations"], "\n".join(
        read_guarding(config).lines()
    )
    # It would have passed by success, which is why rules are asked about at all.
    assert broken.panels[0].adapter.success > broken.panels[0].base.success
    assert kept.panels[0].rise < 0
    assert (tmp_path / "served" / "current").readlink().name.startswith("1-")
    value = metrics.registry.get_sample_value
    assert value("chorale_silo_guard_verdict", {"verdict": "violations"}) == 1
    assert value("chorale_silo_guard_served_round") == 1
    assert np.isfinite(value("chorale_silo_guard_drift", {"environment": "temptation"}))
