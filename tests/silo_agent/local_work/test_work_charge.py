"""Local training under ``record_local`` is charged before it begins, once, whatever comes of it."""

import threading
from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np
import pytest

from dp.accounting.charge import training_charges
from dp.accounting.compose import epsilon_of
from dp.errors import BudgetExceededError, LedgerCorruptError, ReceiptError
from dp.ledger.ledger import Ledger
from evolution.errors import EvolverSetupError
from evolution.methods.constant import ConstantEvolver
from evolution.methods.evolver import Evolution
from evolution.methods.registry import make_evolver
from federation.plan.read import read_plan
from silo_agent.books.audit import AuditLog
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import LocalStoreError, PolicyRefusalError
from silo_agent.local_work.reservation import Reservation
from silo_agent.policy.approvals import Approvals, Word
from tests.kit.server import world_plan as swp
from tests.kit.silo_agent.record_plans import local_plan, stepped_plan
from tests.kit.silo_agent.working_silo import WorkingSilo, head_of, plan_of, task_of

PLAN = local_plan()
COST = epsilon_of(training_charges(PLAN.spec), 1e-5)["task"]


@pytest.fixture
def silo(tmp_path):
    made = []

    def make(**options):
        made.append(RefusingSilo(tmp_path / "silo", **options))
        return made[-1]

    yield make
    for one in made:
        one.work.close()
        one.ledger.close()


class RefusingSilo(WorkingSilo):
    def __init__(self, directory, **options):
        super().__init__(directory, **options)
        self.refused = []
        self.reports.refuse = self.refuse

    def refuse(self, **said):
        self.refused.append(said)
        self.reports.arrived.release()

    def ask(self, plan=PLAN, round_number=1):
        self.work.start(task=task_of(round_number), plan=plan, head=head_of())
        assert self.reports.arrived.acquire(timeout=120)

    def start_and_settle(self, plan=PLAN, **changes):
        self.work.start(task=replace(task_of(), **changes), plan=plan, head=head_of())
        self.settle()


def spent(one):
    return one.ledger.spent_epsilons()["task"]


def test_the_training_is_charged_before_ready_is_said(silo):
    one = silo()
    one.ask()
    assert one.refused == []
    assert spent(one) == pytest.approx(COST)
    assert one.store.ledger_head() == one.ledger.head()
    assert one.work.finished("run-1", 1).delta.any()
    # The same task again says ready again and is not charged again.
    one.ask()
    assert spent(one) == pytest.approx(COST)


@pytest.mark.parametrize("fails", ["before", "after", "never asks"])
def test_the_charge_does_not_depend_on_what_the_work_came_to(silo, monkeypatch, fails):
    """The ledger's length is public: it must not tell a silo whose exploration failed."""
    honest = ConstantEvolver.evolve

    def evolve(self, work):
        if fails == "after":
            work.privacy.reserve()
        if fails != "never asks":
            raise ZeroDivisionError("private data did this")
        return honest(self, replace(work, privacy=None))

    monkeypatch.setattr(ConstantEvolver, "evolve", evolve)
    one = silo()
    one.start_and_settle()
    assert one.refused == []
    assert spent(one) == pytest.approx(COST)
    assert one.ledger.head()[0] == 1
    done = one.work.finished("run-1", 1)
    if fails == "never asks":
        assert done.delta.any()
    else:
        # The release adds no noise of its own: zeros would tell that the training failed.
        assert done is None
        assert one.reports.calls == []
        assert one.errors() == 1
    # Nor is the round trained, and charged, once more.
    one.start_and_settle()
    assert one.ledger.head()[0] == 1


def test_over_budget_nothing_is_trained_and_the_round_is_refused(silo):
    one = silo(caps={"task": COST * 0.9})
    one.ask()
    (said,) = one.refused
    assert said == {"run_id": "run-1", "round_number": 1, "step": 0, "reason": "budget"}
    assert one.reports.calls == []
    assert one.work.finished("run-1", 1) is None
    assert spent(one) == 0.0
    assert one.metrics.registry.get_sample_value(
        "chorale_silo_policy_decisions_total", {"decision": "refuse", "rule": "epsilon_cap"}
    )
    # It is asked again, and alive to say so again.
    one.ask()
    assert len(one.refused) == 2


def refuse_run(one):
    Approvals(one.config.data_dir).say(
        Word(run_id="run-1", plan_sha256=bytes(32), approved=False, by="op", at_unix_s=1)
    )


@pytest.mark.parametrize("plan", [PLAN, plan_of()], ids=["record_local", "silo"])
def test_a_run_that_was_refused_while_its_work_waited_is_not_begun_nor_charged(silo, plan):
    one = silo()
    waiting = threading.Event()
    one.work._jobs.put(waiting.wait)
    one.work.start(task=task_of(), plan=plan, head=head_of())
    refuse_run(one)
    waiting.set()
    one.settle()
    assert (spent(one), one.store.rounds(), one.reports.calls) == (0.0, [], [])
    assert one.work.finished("run-1", 1) is None
    (said,) = one.refused
    assert said["reason"] == "this silo's operator refused the run"
    assert one.errors() in {None, 0.0}


@pytest.mark.parametrize("swallows", [False, True])
def test_a_run_that_was_refused_while_it_explored_is_not_trained_nor_charged(
    silo, monkeypatch, swallows
):
    one = silo()

    def evolve(self, work):
        refuse_run(one)
        with suppress(PolicyRefusalError) if swallows else nullcontext():
            work.privacy.reserve()
        return Evolution(delta={}, episodes={}, successes={}, metrics={}, duration_s={})

    monkeypatch.setattr(ConstantEvolver, "evolve", evolve)
    one.ask()
    assert [said["reason"] for said in one.refused] == ["this silo's operator refused the run"]
    assert (spent(one), one.work.finished("run-1", 1)) == (0.0, None)


def swallowing(self, work):
    try:
        work.privacy.reserve()
    except BudgetExceededError:
        delta = {name: np.ones_like(work.adapter[name]) for name in work.trainable}
    return Evolution(delta=delta, episodes={}, successes={}, metrics={}, duration_s={})


def failing(self, work):
    raise ZeroDivisionError("private data did this")


@pytest.mark.parametrize("evolve", [swallowing, failing])
def test_the_refusal_does_not_depend_on_the_method(silo, monkeypatch, evolve):
    monkeypatch.setattr(ConstantEvolver, "evolve", evolve)
    one = silo(caps={"task": COST * 0.9})
    one.ask()
    assert [said["reason"] for said in one.refused] == ["budget"]
    assert one.work.finished("run-1", 1) is None


def test_a_ledger_that_fails_refuses_and_is_opened_again_by_the_next_task(silo, monkeypatch):
    one = silo()

    def full(*_, **__):
        raise LedgerCorruptError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "reserve_training", full)
        one.ask()
    assert [said["reason"] for said in one.refused] == ["ledger"]
    assert one.work.finished("run-1", 1) is None
    with pytest.raises(LedgerCorruptError):
        # The daemon's thread opens the ledger again when it sees this.
        one.work.start(task=task_of(), plan=PLAN, head=head_of())
    one.ask()
    assert one.work.finished("run-1", 1) is not None
    assert spent(one) == pytest.approx(COST)


@pytest.mark.parametrize(
    "plan",
    [PLAN, stepped_plan(), plan_of(), read_plan(swp.plan_toml(mode="silo", noise=1.0))],
    ids=["local", "distributed", "none", "silo"],
)
def test_a_configuration_that_cannot_run_is_refused_in_every_mode_and_costs_nothing(silo, plan):
    """Its zeros would count towards a sum that is about the others."""
    one = silo(value="not a number")
    one.ask(plan)
    (said,) = one.refused
    assert said == {"run_id": "run-1", "round_number": 1, "step": 0, "reason": "configuration"}
    assert one.reports.calls == []
    assert one.ledger.head()[0] == 0
    assert one.work.finished("run-1", 1) is None
    # The site may mend it: the next task begins anew.
    one.ask(plan)
    assert len(one.refused) == 2


def test_tasks_in_turns_train_and_charge_each_round_once(silo, monkeypatch):
    """A coordinator that alternates two runs must not drain the budget."""
    go_on, honest = threading.Event(), ConstantEvolver.evolve

    def slow(self, work):
        assert go_on.wait(10)
        return honest(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", slow)
    one = silo()
    for _ in range(20):
        for run_id in ("run-1", "run-2"):
            one.work.start(task=replace(task_of(), run_id=run_id), plan=PLAN, head=head_of())
    go_on.set()
    one.settle()
    for _ in range(3):
        for run_id in ("run-1", "run-2"):
            one.start_and_settle(run_id=run_id)
    assert one.ledger.head()[0] <= 2
    assert any(one.work.finished(run_id, 1) for run_id in ("run-1", "run-2"))


def test_a_round_that_is_over_before_exploring_begins_is_not_charged(silo, monkeypatch):
    """Others may have refused the plan: while this silo sets its method up, the run has ended."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(setup):
        begun.set()
        assert go_on.wait(10)
        return make_evolver(setup)

    monkeypatch.setattr("silo_agent.local_work.held_method.make_evolver", slow)
    one = silo()
    one.work.start(task=task_of(), plan=PLAN, head=head_of())
    assert begun.wait(10)
    one.work.call_off()
    go_on.set()
    one.settle()
    assert (one.ledger.head()[0], one.reports.calls, one.refused) == (0, [], [])
    assert one.errors() == 0
    # The coordinator asks again, and the round is worked on and charged once.
    one.ask()
    assert spent(one) == pytest.approx(COST)
    one.ask()
    assert spent(one) == pytest.approx(COST)


def test_a_task_that_comes_while_work_is_called_off_is_not_lost(silo, monkeypatch):
    one = silo()
    method, call_off = one.work._method.of, one.work._call_off

    def over(plan, run_id):
        one.work.call_off()
        return method(plan, run_id)

    def asked_again(key):
        one.work._method.of = method
        one.work.start(task=task_of(), plan=PLAN, head=head_of())
        call_off(key)

    one.work._method.of, one.work._call_off = over, asked_again
    one.ask()
    assert one.work.finished("run-1", 1) is not None
    assert spent(one) == pytest.approx(COST)


def test_work_that_was_called_off_holds_up_no_other(silo, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow(setup):
        begun.set()
        assert go_on.wait(10)
        return make_evolver(setup)

    monkeypatch.setattr("silo_agent.local_work.held_method.make_evolver", slow)
    padded = PLAN.rounds.model_copy(update={"ready_after_s": 600, "ready_deadline_s": 900})
    one = silo()
    one.work.start(task=task_of(), plan=PLAN.model_copy(update={"rounds": padded}), head=head_of())
    assert begun.wait(10)
    one.work.call_off()
    go_on.set()
    one.settle()
    assert one.reports.calls == []


def test_a_method_that_was_closed_for_another_run_is_made_anew(silo, monkeypatch):
    """What is closed explores nothing: its zeros would count, or be charged, for ever."""
    made, broken = [], []

    def make(setup):
        if broken:
            raise EvolverSetupError("not with this plan")
        made.append(make_evolver(setup))
        return made[-1]

    monkeypatch.setattr("silo_agent.local_work.held_method.make_evolver", make)
    one = silo()
    one.ask()
    broken.append(True)
    one.start_and_settle(run_id="run-2")
    broken.clear()
    one.start_and_settle(round=2)
    assert len(made) == 2
    assert len(one.refused) == 1


def test_a_round_that_is_explored_is_charged_whatever_the_coordinator_says_meanwhile(
    silo, monkeypatch
):
    """How long exploring takes is data: a charge that could be called off would tell it."""
    begun, go_on, honest = threading.Event(), threading.Event(), ConstantEvolver.evolve

    def slow(self, work):
        begun.set()
        assert go_on.wait(10)
        return honest(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", slow)
    one = silo()
    one.work.start(task=task_of(), plan=PLAN, head=head_of())
    assert begun.wait(10)
    one.work.call_off()
    go_on.set()
    one.settle()
    assert spent(one) == pytest.approx(COST)


def test_queued_work_is_neither_done_nor_charged_after_a_stop(silo, monkeypatch):
    begun, go_on, honest = threading.Event(), threading.Event(), ConstantEvolver.evolve

    def slow(self, work):
        begun.set()
        assert go_on.wait(10)
        return honest(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", slow)
    one = silo()
    one.work.start(task=task_of(1), plan=PLAN, head=head_of())
    assert begun.wait(10)
    one.work.start(task=task_of(2), plan=PLAN, head=head_of())
    threading.Timer(0.2, go_on.set).start()
    one.work.close()
    assert not one.work._thread.is_alive()
    # Nor is what had not come to its charge by then: the next process explores again.
    assert one.ledger.head()[0] == 0


# The reservation itself --------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path):
    store = LocalStore(tmp_path)
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"task": 1e9}) as ledger:
        yield {
            "ledger": ledger,
            "store": store,
            "audit": AuditLog(tmp_path),
            "task": task_of(),
            "plan": PLAN,
            "allow": lambda _task, _plan: None,
            "lives": lambda: True,
            "stopping": lambda: False,
        }


def test_one_round_has_one_receipt(parts):
    reserve = Reservation(**parts)
    receipt = reserve()
    assert receipt.steps_left == PLAN.spec.record.steps_per_round
    with pytest.raises(ReceiptError):
        reserve()
    reserve.settle()
    assert reserve.failure is None
    assert parts["ledger"].head()[0] == 1


def test_a_head_that_cannot_be_remembered_lets_nothing_be_trained(parts, monkeypatch):
    """The charge stands; a silo whose memory lags behind its ledger could be rolled back."""

    def full(*_):
        raise LocalStoreError("disk full")

    monkeypatch.setattr(parts["store"], "set_ledger_head", full)
    reserve = Reservation(**parts)
    with pytest.raises(LocalStoreError):
        reserve()
    assert isinstance(reserve.failure, LocalStoreError)
    assert parts["ledger"].spent_epsilons()["task"] == pytest.approx(COST)


def test_a_restarted_silo_trains_again_and_is_charged_again(parts):
    Reservation(**parts)()
    Reservation(**parts)()
    twice = epsilon_of(training_charges(PLAN.spec) * 2, 1e-5)["task"]
    assert parts["ledger"].spent_epsilons()["task"] == pytest.approx(twice)
