"""What a restart, or the end of a run, leaves of local work: finished once, charged once, or gone.

A restart here is a new worker with the files of the one before; the ledger's lock passes over.
"""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from dp.accounting.charge import training_charges
from dp.accounting.compose import epsilon_of
from evolution.local_time import require_wanted
from evolution.methods.constant import ConstantEvolver
from silo_agent.errors import LocalStoreError
from silo_agent.local_work.pace import Pace
from silo_agent.policy.approvals import Approvals, Word
from tests.kit.silo_agent.record_plans import local_plan, stepped_plan
from tests.kit.silo_agent.working_silo import FakePace, WorkingSilo, head_of, plan_of, task_of
from tests.kit.waiting import until

PLAN = local_plan()
COST = epsilon_of(training_charges(PLAN.spec), 1e-5)["task"]


class Silo(WorkingSilo):
    def __init__(self, directory, **options):
        super().__init__(directory, **options)
        self.refused = []
        self.reports.refuse = lambda **said: self.refused.append(said)

    def ask(self, plan=PLAN, **changes):
        self.work.start(task=replace(task_of(), **changes), plan=plan, head=head_of())

    def spent(self):
        return self.ledger.spent_epsilons()["task"]

    def trainings(self, run="run-1"):
        return self.ledger.debits_of_run(run).trainings

    def files(self):
        return sorted((self.config.data_dir / "results").glob("*"))

    def kept(self):
        """Without those that are still being written."""
        return [path for path in self.files() if path.suffix != ".partial"]

    def stop(self):
        self.work.close()
        self.ledger.close()


@pytest.fixture
def silo(tmp_path):
    made = []

    def make(**options):
        made.append(Silo(tmp_path / "silo", **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def evolving(monkeypatch):
    """Counts rounds of work, each of another vector: what is read back is told from a new one."""
    honest, done = ConstantEvolver.evolve, []

    def evolve(self, work):
        done.append(work.round)
        self._value = float(len(done))
        return honest(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", evolve)
    return done


PLANS = {"local": PLAN, "none": plan_of(), "distributed": stepped_plan()}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_finished_work_is_neither_done_nor_charged_again(silo, evolving, plan):
    one = silo()
    one.ask(plan)
    one.reports.wait()
    first = one.work.finished("run-1", 1)
    one.stop()
    again = silo()
    again.ask(plan, ready_deadline_unix_s=7)
    again.reports.wait()
    found = again.work.finished("run-1", 1)
    assert evolving == [1]
    assert found.delta.tobytes() == first.delta.tobytes()
    assert (found.episodes, found.successes) == (first.episodes, first.successes)
    assert again.trainings() == (1 if plan is PLAN else 0)
    assert len(again.store.rounds()) == 1
    assert again.errors() in {None, 0.0}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_crash_inside_training_is_charged_again(silo, monkeypatch):
    def dies(_self, work):
        work.privacy.reserve()
        # Ends the thread, and nothing after it is done.
        raise SystemExit

    one = silo()
    with monkeypatch.context() as patch:
        patch.setattr(ConstantEvolver, "evolve", dies)
        one.ask()
        one.work._thread.join(10)
    assert (one.trainings(), one.files()) == (1, [])
    one.stop()
    again = silo()
    again.ask()
    again.reports.wait()
    assert again.trainings() == 2
    assert again.spent() == pytest.approx(epsilon_of(training_charges(PLAN.spec) * 2, 1e-5)["task"])


def test_after_a_restart_it_is_ready_no_sooner_than_work_that_is_done_again(silo, evolving):
    """Else a restart told whether the work had been finished by then."""
    padded = PLAN.rounds.model_copy(update={"ready_after_s": 1, "ready_deadline_s": 900})
    plan = PLAN.model_copy(update={"rounds": padded})
    one = silo(pace=Pace())
    one.ask(plan)
    until(one.kept, "the work is on disk")
    # Stopped before it was ready: it has said nothing.
    one.stop()
    assert one.reports.calls == []
    again = silo(pace=Pace())
    asked = time.monotonic()
    again.ask(plan)
    again.reports.wait()
    assert time.monotonic() - asked >= 1
    assert (evolving, again.trainings()) == ([1], 1)


RECORD_PLANS = pytest.mark.parametrize(
    "plan", [PLAN, stepped_plan()], ids=["record_local", "record_distributed"]
)


@RECORD_PLANS
def test_kept_work_waits_for_the_model_as_work_that_is_done_again_does(
    silo, evolving, monkeypatch, plan
):
    """Loading comes before the plan's time: without it, when it is ready told what was kept."""
    pace, honest = FakePace(), ConstantEvolver.__init__

    def slow(self, setup):
        pace.at += 100.0
        honest(self, setup)

    monkeypatch.setattr(ConstantEvolver, "__init__", slow)
    ready = []
    for keeps in (True, True, False):
        pace.at = 0.0
        one = silo(pace=pace)
        if not keeps:
            for kept in one.files():
                kept.unlink()
        one.ask(plan)
        one.reports.wait()
        ready.append(pace.at)
        one.stop()
    assert evolving == [1, 1]
    assert ready == [100.0 + plan.rounds.ready_after_s] * 3


@RECORD_PLANS
def test_kept_work_whose_method_cannot_be_set_up_comes_to_what_a_new_round_does(
    silo, evolving, monkeypatch, plan
):
    one = silo()
    one.ask(plan)
    one.reports.wait()
    one.stop()

    def fails(_self, _setup):
        raise OSError("no such model")

    said = []
    monkeypatch.setattr(ConstantEvolver, "__init__", fails)
    for keeps in (True, False):
        again = silo()
        if not keeps:
            for kept in again.files():
                kept.unlink()
        again.ask(plan)
        again.settle()
        said.append((len(again.reports.calls), again.refused))
        again.stop()
    assert said[0] == said[1]


def test_work_that_failed_is_not_kept(silo, monkeypatch):
    def fails(_self, _work):
        raise ZeroDivisionError

    one = silo()
    with monkeypatch.context() as patch:
        patch.setattr(ConstantEvolver, "evolve", fails)
        one.ask(plan_of())
        one.reports.wait()
    assert one.files() == []
    one.stop()
    again = silo()
    again.ask(plan_of())
    again.reports.wait()
    assert again.work.finished("run-1", 1).delta.any()


def test_a_disk_that_refuses_costs_what_it_would_have_saved_and_nothing_else(
    silo, evolving, monkeypatch, capsys
):
    one = silo()

    def full(*_):
        raise LocalStoreError("disk full")

    monkeypatch.setattr(one.work._files, "keep", full)
    one.ask()
    one.reports.wait()
    assert one.work.finished("run-1", 1) is not None
    assert "result_not_kept" in capsys.readouterr().out
    one.stop()
    again = silo()
    again.ask()
    again.reports.wait()
    assert (evolving, again.trainings()) == ([1, 1], 2)


def test_kept_work_of_a_run_that_was_refused_is_not_used(silo, evolving):
    one = silo()
    one.ask()
    one.reports.wait()
    one.stop()
    again = silo()
    Approvals(again.config.data_dir).say(
        Word(run_id="run-1", plan_sha256=bytes(32), approved=False, by="op", at_unix_s=1)
    )
    again.ask()
    again.settle()
    assert [said["reason"] for said in again.refused] == ["this silo's operator refused the run"]
    assert (again.reports.calls, again.trainings()) == ([], 1)


def test_a_closed_round_leaves_nothing_on_disk(silo, evolving):
    one = silo()
    one.ask()
    one.reports.wait()
    assert len(one.files()) == 1
    one.work.adopted(head_of(1), PLAN)
    assert one.files() == []


# The end of a run ---------------------------------------------------------------------------------


class Slow:
    """Explores until it is told to go on, and trains likewise; between two steps it asks."""

    def __init__(self, monkeypatch, *, charged_first=False, swallows=False):
        self.begun, self.go_on, self.ended = (threading.Event() for _ in range(3))
        honest, slow = ConstantEvolver.evolve, self

        def evolve(self, work):
            reserved = False
            if charged_first and work.privacy is not None:
                work.privacy.reserve()
                reserved = True
            slow.begun.set()
            while not slow.go_on.wait(0.01):
                try:
                    require_wanted()
                except Exception:
                    slow.ended.set()
                    if not swallows:
                        raise
                    break
            return honest(self, replace(work, privacy=None) if reserved or swallows else work)

        monkeypatch.setattr(ConstantEvolver, "evolve", evolve)


@pytest.mark.parametrize("swallows", [False, True], ids=["", "swallows"])
@pytest.mark.parametrize("plan", [PLAN, plan_of()], ids=["local", "none"])
def test_exploring_ends_with_its_run_and_nothing_is_charged(silo, monkeypatch, plan, swallows):
    slow = Slow(monkeypatch, swallows=swallows)
    one = silo()
    one.ask(plan)
    assert slow.begun.wait(10)
    one.work.runs_over(frozenset({"run-1"}))
    assert slow.ended.wait(10)
    one.settle()
    assert (one.spent(), one.reports.calls, one.refused, one.files()) == (0.0, [], [], [])
    assert one.work.finished("run-1", 1) is None
    assert one.errors() in {None, 0.0}


def test_the_model_of_a_run_is_let_go_of_when_that_run_is_over(silo, monkeypatch):
    closed, close = [], ConstantEvolver.close
    monkeypatch.setattr(ConstantEvolver, "close", lambda self: (closed.append(self), close(self)))
    one = silo()
    one.ask()
    one.settle()
    one.work.runs_over(frozenset({"run-0"}))
    one.settle()
    assert closed == []
    for _ in range(2):  # The coordinator says it again and again.
        one.work.runs_over(frozenset({"run-0", "run-1"}))
        one.settle()
    assert len(closed) == 1


def test_a_run_that_ends_right_before_the_charge_is_not_charged(silo, monkeypatch):
    honest, one = ConstantEvolver.evolve, silo()

    def evolve(self, work):
        one.work.runs_over(frozenset({"run-1"}))
        return honest(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", evolve)
    one.ask()
    one.settle()
    assert (one.spent(), one.reports.calls, one.refused) == (0.0, [], [])


@pytest.mark.parametrize("fails", [False, True])
def test_nor_is_one_whose_method_never_asked(silo, monkeypatch, fails):
    """Work that failed is charged as well, but not for a run that is over."""
    honest, one = ConstantEvolver.evolve, silo()

    def evolve(self, work):
        one.work.runs_over(frozenset({"run-1"}))
        if fails:
            raise ZeroDivisionError
        return honest(self, replace(work, privacy=None))

    monkeypatch.setattr(ConstantEvolver, "evolve", evolve)
    one.ask()
    one.settle()
    assert (one.spent(), one.work.finished("run-1", 1)) == (0.0, None)


def test_a_charged_training_that_is_stopped_stays_charged(silo, monkeypatch):
    slow = Slow(monkeypatch, charged_first=True)
    one = silo()
    one.ask()
    assert slow.begun.wait(10)
    one.work.runs_over(frozenset({"run-1"}))
    assert slow.ended.wait(10)
    one.settle()
    assert one.spent() == pytest.approx(COST)
    assert (one.reports.calls, one.files()) == ([], [])


def test_the_end_of_another_run_a_pause_and_silence_end_nothing(silo, monkeypatch):
    slow = Slow(monkeypatch)
    one = silo()
    one.ask()
    assert slow.begun.wait(10)
    one.work.runs_over(frozenset({"run-0"}))
    one.work.call_off()
    # A paused run gives way to another one's tasks.
    one.ask(plan_of(), run_id="run-2")
    assert not slow.ended.wait(0.2)
    slow.go_on.set()
    one.settle()
    assert one.spent() == pytest.approx(COST)
    assert one.work.finished("run-1", 1) is not None


def over_while_it_waits(silo):
    """A silo whose run ends when its work is done and it is not time to say so yet."""
    padded = PLAN.rounds.model_copy(update={"ready_after_s": 600, "ready_deadline_s": 900})
    one = silo(pace=Pace())
    one.ask(PLAN.model_copy(update={"rounds": padded}))
    until(one.kept, "the work is done")
    one.work.runs_over(frozenset({"run-1"}))
    return one


def test_a_silo_that_waits_to_be_ready_is_free_when_the_run_is_over(silo, evolving):
    one = over_while_it_waits(silo)
    assert one.files() == []
    one.ask(plan_of(), run_id="run-2")
    one.reports.wait()
    assert [call["run_id"] for call in one.reports.calls] == ["run-2"]


def test_what_was_ready_for_a_run_that_is_over_is_forgotten(silo, evolving):
    one = silo()
    one.ask()
    one.reports.wait()
    one.work.runs_over(frozenset({"run-1"}))
    assert (one.files(), one.work.finished("run-1", 1)) == ([], None)


def test_a_task_is_a_newer_word_than_the_one_that_its_run_is_over(silo, evolving):
    one = silo()
    one.work.runs_over(frozenset({"run-1"}))
    one.ask()
    one.reports.wait()
    assert one.work.finished("run-1", 1) is not None


def test_a_run_that_was_said_to_be_over_is_worked_for_again_when_it_is_asked_for(silo, evolving):
    """As by a coordinator that was put back from a backup; each training is charged."""
    one = silo()
    for times in (1, 2):
        one.ask()
        one.reports.wait()
        assert (len(evolving), one.trainings()) == (times, times)
        assert one.work.finished("run-1", 1) is not None
        one.work.runs_over(frozenset({"run-1"}))


def test_so_is_one_that_ended_while_its_silo_waited_to_be_ready(silo, evolving):
    one = over_while_it_waits(silo)
    one.settle()
    one.ask()
    one.reports.wait()
    assert len(evolving) == 2


def test_a_silo_that_is_stopped_while_it_explores_is_not_charged(silo, monkeypatch):
    slow = Slow(monkeypatch)
    one = silo()
    one.ask()
    assert slow.begun.wait(10)
    one.work.close()
    assert slow.ended.is_set()
    assert not one.work._thread.is_alive()
    assert (one.spent(), one.files()) == (0.0, [])


def test_what_is_paid_for_is_finished_and_kept_while_the_silo_stops(silo, monkeypatch):
    slow = Slow(monkeypatch, charged_first=True)
    one = silo()
    one.ask()
    assert slow.begun.wait(10)
    threading.Timer(0.2, slow.go_on.set).start()
    one.stop()
    assert not slow.ended.is_set()
    assert len(one.files()) == 1
    again = silo()
    again.ask()
    again.reports.wait()
    assert again.trainings() == 1
    assert np.any(again.work.finished("run-1", 1).delta)
