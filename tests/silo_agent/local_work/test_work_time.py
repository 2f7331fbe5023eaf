"""When a silo answers under record-level privacy, and what becomes of work that takes too long."""

import time

import pytest

from dp.errors import TooManyUnitsError
from evolution.local_time import require_time
from evolution.methods.constant import ConstantEvolver, _PatternGradients
from federation.plan.plan import UNIT_SHARE
from silo_agent.errors import LateWorkError, WorkCalledOffError
from silo_agent.local_work.pace import Pace
from silo_agent.local_work.plan_terms import settings_of
from silo_agent.local_work.result_file import ResultFiles
from silo_agent.policy.passed_time import NEVER_LATE, Passed, PassedTime
from tests.kit.secagg.secagg_samples import make_descriptor, make_roster
from tests.kit.server.world_plan import AFTER_S
from tests.kit.silo_agent.record_plans import local_plan, stepped_plan
from tests.kit.silo_agent.working_silo import FakePace, WorkingSilo, head_of, plan_of, task_of
from tests.kit.waiting import until

LOCAL, STEPPED = local_plan(), stepped_plan()
MODES = pytest.mark.parametrize("plan", [LOCAL, STEPPED], ids=["record_local", "distributed"])
SOLVED_S = 0.0085
"""What a task with something to learn from takes of a CPU."""


@pytest.fixture
def make_silo(tmp_path):
    made = []

    def make(*, units=0, pace=None):
        directory = tmp_path / f"silo-{len(made)}"
        one = WorkingSilo(directory, pace=pace or FakePace())
        toml = directory / "silo.toml"
        toml.write_text(toml.read_text() + f"units = {units}\n")
        one.work._method._config = type(one.config).load(directory)
        made.append(one)
        return one

    yield make
    for one in made:
        one.work.close()
        one.ledger.close()


def passed(one):
    return PassedTime(one.config.data_dir).read()


def late_errors(one):
    labels = {"kind": "LateWorkError"}
    return one.metrics.registry.get_sample_value("chorale_silo_errors_total", labels)


def answered_at(one):
    """A sum for one attempt, and the moment of the silo's clock at which it was there."""
    at = []
    future = one.work.unit_sum(make_descriptor(make_roster()), STEPPED, head_of())
    future.add_done_callback(lambda _: at.append(one.work._pace.now()))
    one.settle()
    return future, at[0]


@pytest.mark.parametrize("solved", [0, 1, 20, 110])
def test_when_a_step_is_answered_does_not_tell_how_many_tasks_were_solved(
    make_silo, monkeypatch, solved
):
    """Without the wait the coordinator counts them: some 8.5 ms each."""
    pace, work_s = FakePace(), []

    def gradients(self, units):
        for _ in units:
            pace.at += SOLVED_S
            work_s.append(SOLVED_S)
            yield self._pattern

    monkeypatch.setattr(_PatternGradients, "unit_gradients", gradients)
    monkeypatch.setattr("dp.steps.sgd.poisson_sample", lambda population, q, s: tuple(population))
    monkeypatch.setattr(type(STEPPED.spec.record), "max_units", 200)
    future, at = answered_at(make_silo(units=solved, pace=pace))
    assert future.exception() is None
    assert sum(work_s) == pytest.approx(solved * SOLVED_S)
    assert at == AFTER_S


def test_a_sum_is_not_to_be_had_before_its_time(make_silo):
    """On the machine's own clock."""
    one = make_silo(units=2, pace=Pace())
    began = time.monotonic()
    future = one.work.unit_sum(make_descriptor(make_roster()), STEPPED, head_of())
    future.result(30)
    assert time.monotonic() - began >= AFTER_S


def test_a_sum_that_failed_or_is_too_large_is_told_no_sooner(make_silo, monkeypatch):
    for error in (OSError("no such model"), TooManyUnitsError("more than may be summed")):

        def fail(self, work, error=error):
            raise error

        monkeypatch.setattr(ConstantEvolver, "unit_sum", fail)
        assert answered_at(make_silo())[1] == AFTER_S


def test_a_silo_that_stops_answers_no_step_too_soon(make_silo):
    one = make_silo(units=2, pace=Pace())
    future = one.work.unit_sum(make_descriptor(make_roster()), STEPPED, head_of())
    until(future.running, "the sum is being computed")
    one.work.close()
    with pytest.raises(WorkCalledOffError):
        future.result(0)


def test_nothing_of_a_sum_that_takes_too_long_leaves(make_silo, monkeypatch):
    """Noise for one unit does not hide that all are missing, so no zeros go up either."""
    pace, honest = FakePace(), ConstantEvolver.unit_sum

    def slow(self, work):
        pace.at += AFTER_S + SOLVED_S
        return honest(self, work)

    monkeypatch.setattr(ConstantEvolver, "unit_sum", slow)
    one = make_silo(units=4, pace=pace)
    future, _ = answered_at(one)
    with pytest.raises(LateWorkError):
        future.result(0)
    assert passed(one) == Passed(step_answer_after_s=AFTER_S)
    assert late_errors(one) == 1


@MODES
@pytest.mark.parametrize("how", ["cut", "ended"])
def test_nothing_of_a_round_that_takes_too_long_leaves(make_silo, monkeypatch, plan, how):
    """Neither zeros nor a late report: as after a crash; ``record_local`` is charged."""
    pace, honest = FakePace(), ConstantEvolver.evolve

    def slow(self, work):
        pace.at += AFTER_S + SOLVED_S
        if how == "cut":
            monkeypatch.setattr("evolution.local_time.time.monotonic", lambda: 1e12)
            require_time()
        return honest(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", slow)
    one = make_silo(pace=pace)
    one.work.start(task=task_of(), plan=plan, head=head_of())
    one.settle()
    assert one.reports.calls == []
    assert one.work.finished("run-1", 1) is None
    assert passed(one) == Passed(ready_after_s=AFTER_S)
    assert late_errors(one) == 1
    assert (one.ledger.spent_epsilons().get("task", 0.0) > 0.0) is (plan is LOCAL)
    # The same task again is not a way to have it said.
    one.work.start(task=task_of(), plan=plan, head=head_of())
    one.settle()
    assert one.reports.calls == []


@MODES
def test_nor_where_writing_it_down_takes_too_long(make_silo, monkeypatch, plan):
    """Work that ends just in time would be told by an answer that is a little late."""
    pace, honest = FakePace(), ResultFiles.keep

    def slow(self, *what):
        pace.at += AFTER_S + SOLVED_S
        honest(self, *what)

    monkeypatch.setattr(ResultFiles, "keep", slow)
    one = make_silo(pace=pace)
    one.work.start(task=task_of(), plan=plan, head=head_of())
    one.settle()
    assert (one.reports.calls, one.work.finished("run-1", 1)) == ([], None)
    assert passed(one) == Passed(ready_after_s=AFTER_S)
    # Nor does a restart bring it.
    assert list((one.config.data_dir / "results").iterdir()) == []


@MODES
def test_loading_the_model_takes_none_of_the_time(make_silo, monkeypatch, plan):
    """How long that takes is no unit's doing, and a first round must not be late for it."""
    pace, honest = FakePace(), ConstantEvolver.__init__

    def slow(self, setup):
        pace.at += 100.0
        honest(self, setup)

    monkeypatch.setattr(ConstantEvolver, "__init__", slow)
    one = make_silo(pace=pace)
    one.work.start(task=task_of(), plan=plan, head=head_of())
    one.reports.wait()
    assert pace.at == 100.0 + AFTER_S
    assert passed(one) == NEVER_LATE


def test_the_sites_hours_end_no_record_round(make_silo, monkeypatch):
    """A limit on the whole that gives zeros would move the sum by all units at once."""
    one = make_silo()
    one.work._limits = one.work._limits.model_copy(update={"max_local_hours_per_round": 1e-12})
    honest = ConstantEvolver.evolve

    def in_steps(self, work):
        require_time()
        return honest(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", in_steps)
    one.start(plan=LOCAL)
    assert one.work.finished("run-1", 1).delta.any()
    one.start(round_number=2, plan=plan_of())
    assert not one.work.finished("run-1", 2).delta.any()
    one.work._limits = type(one.work._limits)()


@MODES
def test_all_tries_of_one_task_together_take_a_part_of_the_time(plan):
    settings = settings_of(plan)
    assert settings.try_s * settings.tries_per_task == UNIT_SHARE * plan.rounds.ready_after_s
    assert UNIT_SHARE < 1
    assert settings_of(plan_of()).try_s is None
