"""``record_distributed`` inside a silo: one exploration a round, a new sum for every attempt."""

import threading

import numpy as np
import pytest

import dp.steps.sgd
from dp.errors import TooManyUnitsError
from dp.noise.unit_sum import UnitSum
from evolution.methods.constant import ConstantEvolver, constant_pattern
from federation.plan.read import read_plan
from secagg.descriptor import AggregationId, MetricsLayout
from silo_agent.errors import NotReadyError, SessionError
from tests.kit.secagg.secagg_samples import make_descriptor, make_roster
from tests.kit.server import world_plan as swp
from tests.kit.silo_agent.record_plans import STEPS, stepped_plan
from tests.kit.silo_agent.working_silo import WorkingSilo, head_of, plan_of, task_of

PLAN = stepped_plan()
BLOCK = MetricsLayout(
    names=("update_norm_sq", "episodes/constant", "successes/constant"),
    bounds=(1.0, 64.0, 64.0),
    grid=4096,
    sigma=0.0,
)
UNITS = 6


@pytest.fixture
def silo(tmp_path):
    one = WorkingSilo(tmp_path / "silo")
    toml = tmp_path / "silo" / "silo.toml"
    toml.write_text(toml.read_text() + f"units = {UNITS}\n")
    one.work._method._config = type(one.config).load(tmp_path / "silo")
    yield one
    one.work.close()
    one.ledger.close()


def descriptor_of(step, attempt=1):
    return make_descriptor(
        make_roster(),
        identity=AggregationId(run_id="run-1", round=1, step=step, part=0, attempt=attempt),
    )


def ask(one, *, step, round_number=1):
    task = task_of(round_number, step=step)
    one.work.start(task=task, plan=PLAN, head=head_of())
    return one.reports.wait()


def test_a_round_is_explored_once_and_every_step_is_answered(silo):
    for step in range(STEPS):
        call = ask(silo, step=step)
        assert call["step"] == step
    silo.settle()
    (row,) = silo.store.rounds()
    assert row["episodes"] == {"constant": 64}


def test_a_silo_that_explored_nothing_in_this_process_takes_part_in_a_later_step(silo):
    """It was restarted in the middle of the round; what step 0 stored is on its disk."""
    assert ask(silo, step=1)["step"] == 1
    silo.settle()
    assert silo.store.rounds() == []
    done = silo.work.finished("run-1", 1)
    assert done.for_attempt(BLOCK, step=1, unit_sum=sum_of(silo, 1)).figures == dict.fromkeys(
        BLOCK.names, 0.0
    )


def test_a_silo_that_is_still_exploring_says_ready_for_the_newest_step(silo, monkeypatch):
    explore, explored = threading.Event(), ConstantEvolver.evolve

    def slow(self, work):
        assert explore.wait(10)
        return explored(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", slow)
    for step in (0, 1):
        silo.work.start(task=task_of(step=step), plan=PLAN, head=head_of())
    assert silo.reports.calls == []
    explore.set()
    assert silo.reports.wait()["step"] == 1
    silo.settle()
    assert len(silo.reports.calls) == 1


def test_only_step_0_carries_figures(silo):
    ask(silo, step=0)
    done = silo.work.finished("run-1", 1)
    figures = [
        done.for_attempt(BLOCK, step=step, unit_sum=sum_of(silo, step)).figures
        for step in range(STEPS)
    ]
    # The norm of a sum of unit gradients is no figure of a silo.
    assert figures[0] == {
        "update_norm_sq": 0.0,
        "episodes/constant": 64.0,
        "successes/constant": 16.0,
    }
    assert figures[1:] == [dict.fromkeys(BLOCK.names, 0.0)] * (STEPS - 1)


def sum_of(one, step, attempt=1):
    return one.work.unit_sum(descriptor_of(step, attempt), PLAN, head_of())


def units_in(unit_sum):
    """How many units are in a sum; each of them is the same pattern."""
    grid = unit_sum.grid
    out = np.zeros(grid.dimension, dtype=np.uint32)
    unit_sum.add_to(out)
    one = UnitSum(grid, max_units=1)
    one.add(constant_pattern(0.125, grid.dimension))
    single = np.zeros(grid.dimension, dtype=np.uint32)
    one.add_to(single)
    quotients = set((out.view(np.int32) // single.view(np.int32)).tolist())
    assert len(quotients) == 1
    return quotients.pop()


def test_every_attempt_draws_its_own_sample(silo):
    """Two releases on one sample are not two subsampled releases."""
    ask(silo, step=0)
    counts = {units_in(sum_of(silo, 0, attempt).result(10)) for attempt in range(40)}
    assert len(counts) > 2
    assert counts <= set(range(UNITS + 1))


def test_a_unit_that_fails_is_null_and_all_others_stay(silo, monkeypatch):
    """Else one unit's presence would move the sum by as much as all units together."""
    honest = dp.steps.sgd.unit_sum

    class Failing:
        def __init__(self, backend):
            self.dimension = backend.dimension
            self.backend = backend

        def longest(self, rows):
            return self.backend.longest(rows)

        def unit_gradients(self, units):
            for rows in units:
                if rows[0] == "bad":
                    raise MemoryError("private data did this")
                yield from self.backend.unit_gradients([rows])

    def with_a_bad_unit(population, rows_of, *, backend, **options):
        bad = {**rows_of, population[2]: ("bad",)}
        return honest(population, bad, backend=Failing(backend), **options)

    monkeypatch.setattr(dp.steps.sgd, "poisson_sample", lambda population, q, s: tuple(population))
    monkeypatch.setattr("evolution.methods.constant.unit_sum", with_a_bad_unit)
    found = sum_of(silo, 0).result(10)
    assert found.null_units == 1
    assert units_in(found) == UNITS - 1
    assert not silo.errors()


def test_a_model_that_cannot_be_loaded_gives_a_sum_without_units(silo, monkeypatch, capsys):
    """Nothing of a unit decides that."""

    def fail(self, work):
        raise OSError("no such model")

    monkeypatch.setattr(ConstantEvolver, "unit_sum", fail)
    found = sum_of(silo, 0).result(10)
    assert units_in(found) == 0
    assert silo.errors() == 1
    assert "gradients_failed" in capsys.readouterr().out


def test_the_future_of_a_sum_always_ends(silo, monkeypatch):
    def fail(*_):
        raise OSError("work seed unreadable")

    with monkeypatch.context() as patch:
        patch.setattr(silo.work, "_seed", fail)
        assert units_in(sum_of(silo, 0).result(10)) == 0
    with monkeypatch.context() as patch:
        patch.setattr("silo_agent.local_work.work.shared_layout_of", fail)
        with pytest.raises(OSError, match="unreadable"):
            sum_of(silo, 0).result(10)
    silo.work.close()
    assert sum_of(silo, 0).cancelled()


def test_a_slow_round_does_not_replace_the_one_that_was_answered_since(silo, monkeypatch):
    go_on, explored = threading.Event(), ConstantEvolver.evolve

    def slow(self, work):
        assert go_on.wait(10)
        return explored(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", slow)
    silo.work.start(task=task_of(1), plan=PLAN, head=head_of())
    assert ask(silo, step=1, round_number=2)["round_number"] == 2
    go_on.set()
    silo.settle()
    assert silo.work.finished("run-1", 2) is not None
    assert len(silo.reports.calls) == 1


def test_a_sample_of_too_many_units_is_an_error_and_no_sum(silo, monkeypatch):
    def overflow(self, work):
        raise TooManyUnitsError("more units than may be summed")

    monkeypatch.setattr(ConstantEvolver, "unit_sum", overflow)
    done = silo_done(silo)
    contribution = done.for_attempt(BLOCK, step=0, unit_sum=sum_of(silo, 0))
    with pytest.raises(TooManyUnitsError):
        contribution.require_ready()
    with pytest.raises(TooManyUnitsError):
        contribution.take()


def silo_done(one):
    ask(one, step=0)
    return one.work.finished("run-1", 1)


def test_a_sum_under_way_is_waited_for_without_standing_still(silo, monkeypatch):
    done, go_on, summed = silo_done(silo), threading.Event(), ConstantEvolver.unit_sum

    def slow(self, work):
        assert go_on.wait(10)
        return summed(self, work)

    monkeypatch.setattr(ConstantEvolver, "unit_sum", slow)
    contribution = done.for_attempt(BLOCK, step=0, unit_sum=sum_of(silo, 0))
    for _ in range(2):
        with pytest.raises(NotReadyError):
            contribution.require_ready()
    go_on.set()
    silo.settle()
    contribution.require_ready()
    assert isinstance(contribution.take(), UnitSum)
    with pytest.raises(SessionError):
        contribution.take()


def test_a_sum_of_an_attempt_that_is_over_is_not_computed(silo, monkeypatch):
    done, computed = silo_done(silo), []
    hold = threading.Event()
    silo.work._jobs.put(lambda: hold.wait(10))
    monkeypatch.setattr(ConstantEvolver, "unit_sum", lambda self, work: computed.append(work))
    contribution = done.for_attempt(BLOCK, step=0, unit_sum=sum_of(silo, 0))
    contribution.drop()
    hold.set()
    silo.settle()
    assert computed == []
    with pytest.raises(SessionError):
        contribution.take()


def test_adapters_inside_a_round_are_not_judged(silo):
    text = swp.stepped_toml(steps=STEPS, rounds=4).decode()
    plan = read_plan(text.replace("held_out = 0", "held_out = 8\nevery_rounds = 1").encode())
    for number, step in ((0, 0), (1, 0), (1, 1), (1, STEPS - 1), (2, 0)):
        silo.work.adopted(head_of(number, step), plan)
    silo.settle()
    assert sorted({row["round"] for row in silo.store.evaluations()}) == [0, 1]


def test_where_a_round_is_one_release_its_delta_is_contributed(silo):
    silo.work.start(task=task_of(), plan=plan_of(), head=head_of())
    silo.reports.wait()
    contribution = silo.work.finished("run-1", 1).for_attempt(BLOCK)
    contribution.require_ready()
    assert contribution.take().any()
    assert "redacted" in repr(contribution)
