"""Where units are protected: what is the silo's own stays out of what is uploaded."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evolution.errors import EvolverSetupError
from evolution.methods import descend, exploring
from evolution.methods.evolver import Evaluation
from evolution.methods.expert import EXPERT_ROUND
from evolution.trajectory import Step, Task, Trajectory
from tests.kit.evolution.record_round import LOCAL, SHARED, population, step_work, summed, work

SURE = dataclasses.replace(SHARED, record=dataclasses.replace(SHARED.record, sampling_rate=1.0))
DITTO = {"personal": "ditto"}
CHOOSES = {"personal": "residual", "personal_choice": 4}


class WithoutNoise:
    """The sum of all units' gradients: what a noisy step hides."""

    null_units = 0

    def __init__(self, *, receipt, dimension, backend):
        self.backend = backend

    def gradient(self, _units, rows_of):
        return sum(self.backend.unit_gradients(list(rows_of.values())))


def demonstration(task_id, environment="coin"):
    step = Step(
        observation="",
        action="",
        context_ids=(1, 2),
        action_ids=(7, 1),
        action_logprobs=(0.0, 0.0),
    )
    return Trajectory(
        task=Task(environment=environment, task_id=task_id),
        steps=(step,),
        final_observation="",
        success=True,
        adapter_sha256="",
        round=EXPERT_ROUND,
    )


def judged(adapter, round_index):
    """What the silo judges, and by whose tasks it does not choose."""
    return Evaluation(
        round=round_index,
        adapter=adapter,
        adapter_sha256=str(round_index),
        episodes=4,
        temperatures=(1.0,),
        max_new_tokens=3,
    )


@pytest.mark.parametrize("options", [DITTO, {"personal": "finetune"}, CHOOSES])
def test_a_step_of_the_sum_is_the_same_with_and_without_a_personal_adapter(
    make_silo, adapter, options
):
    sums, metrics = [], []
    for name, chosen in (("without", {}), ("with", options)):
        silo = make_silo(SURE, name=name, options=chosen)
        metrics.append(silo.evolve(work(adapter, spec=SURE)[0]).metrics)
        assert (silo.choose(judged(adapter, 0)) is not None) == (chosen is CHOOSES)
        sums.append(summed(silo.unit_sum(step_work(adapter, spec=SURE))))
    assert sums[0].any()
    assert sums[0].tobytes() == sums[1].tobytes()
    assert metrics[1]["personal_optimiser_steps"] > 0
    assert "personal_optimiser_steps" not in metrics[0]


@pytest.mark.parametrize("options", [DITTO, CHOOSES])
def test_a_local_round_is_the_same_with_and_without_a_personal_adapter(
    make_silo, adapter, ledger, monkeypatch, options
):
    monkeypatch.setattr(descend, "DpStep", WithoutNoise)
    silos = [make_silo(name="without"), make_silo(name="with", options=options)]
    for index in range(2):
        one, two = (s.evolve(work(adapter, ledger, round_index=index)[0]) for s in silos)
        assert any(d.any() for d in one.delta.values())
        assert all(one.delta[key].tobytes() == two.delta[key].tobytes() for key in one.delta)
        assert two.metrics["personal_optimiser_steps"] > 0
        # Neither charges anything, nor leaves anything that the next round would read.
        assert (silos[1].choose(judged(adapter, index)) is not None) == (options is CHOOSES)


def test_a_personal_adapter_that_breaks_costs_the_charged_steps_nothing(
    make_silo, adapter, ledger, monkeypatch, tmp_path
):
    monkeypatch.setattr(descend, "DpStep", WithoutNoise)
    whole = make_silo(name="without").evolve(work(adapter, ledger)[0]).delta
    (tmp_path / "silo" / "personal").mkdir(parents=True)
    (tmp_path / "silo" / "personal" / "ditto").write_text("no directory")
    evolution = make_silo(options=DITTO).evolve(work(adapter, ledger)[0])
    assert evolution.metrics["personal_failed"] == 1.0
    assert all(evolution.delta[key].tobytes() == whole[key].tobytes() for key in whole)


@pytest.mark.parametrize("spec", [LOCAL, SHARED])
def test_demonstrations_are_in_no_population(make_silo, adapter, ledger, spec):
    silo = make_silo(spec)
    silo.evolve(work(adapter, ledger, spec=spec)[0])
    before = population(silo, window=0)
    explored = before.units[0]
    silo._memory.add_expert([demonstration(1), demonstration(int(explored.key))])
    after = population(silo, window=0, use_expert=True)
    assert after.units == before.units
    assert after.rows_of == before.rows_of
    assert len(silo._memory.experts()) == 2


def test_demonstrations_do_not_move_a_step(make_silo, adapter):
    sums = []
    for name, given in (("without", []), ("with", [demonstration(n) for n in range(20)])):
        silo = make_silo(SURE, name=name)
        silo._memory.add_expert(given)
        silo.evolve(work(adapter, spec=SURE, use_expert=True)[0])
        sums.append(summed(silo.unit_sum(step_work(adapter, spec=SURE, use_expert=True))))
    assert sums[0].any()
    assert sums[0].tobytes() == sums[1].tobytes()


@pytest.mark.parametrize("spec", [LOCAL, SHARED])
@pytest.mark.parametrize(
    ("options", "match"),
    [({"personal": "fedsa"}, "beyond what is charged"), ({"success_filter": "off"}, "all-tries")],
)
def test_options_that_would_escape_the_charge_are_refused(make_silo, spec, options, match):
    with pytest.raises(EvolverSetupError, match=match):
        make_silo(spec, options=options)


@pytest.mark.parametrize("spec", [LOCAL, SHARED])
def test_gradients_that_are_not_plain_are_refused_before_exploring(
    make_silo, adapter, ledger, monkeypatch, spec
):
    monkeypatch.setattr(exploring, "run_episodes", pytest.fail)
    silo = make_silo(spec)
    asked, reserved = work(adapter, ledger, spec=spec, proximal_mu=0.1)
    with pytest.raises(EvolverSetupError, match="proximal_mu"):
        silo.evolve(asked)
    falling, _ = work(adapter, ledger, spec=spec, learning_rate_schedule="cosine")
    with pytest.raises(EvolverSetupError, match="learning_rate_schedule"):
        silo.evolve(falling)
    plain, _ = work(adapter, ledger, spec=spec)
    zeros = {key: np.zeros_like(value) for key, value in adapter.items()}
    with pytest.raises(EvolverSetupError, match="SCAFFOLD"):
        silo.evolve(dataclasses.replace(plain, correction=zeros))
    if spec is SHARED:
        with pytest.raises(EvolverSetupError, match="proximal_mu"):
            silo.unit_sum(step_work(adapter, proximal_mu=0.1))
    assert reserved == []
    assert silo._memory.explored(round_index=9) == []
