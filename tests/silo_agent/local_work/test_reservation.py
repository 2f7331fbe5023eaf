"""What a training is charged against, counted where the debit is made.

Tasks may come faster than work: each was admitted while nothing of the others was charged yet.
"""

from dataclasses import replace

import pytest

from dp.errors import TooManyDebitsError
from dp.ledger.ledger import Ledger
from federation.chain.task import ATTEMPTS_USED_UP
from silo_agent.books.audit import AuditLog
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import WorkCalledOffError
from silo_agent.local_work.reservation import Reservation
from silo_agent.policy.refusal import refused_charge
from tests.kit.silo_agent.record_plans import local_plan
from tests.kit.silo_agent.working_silo import task_of

PLAN = local_plan()
MOST_TODAY = 4


@pytest.fixture
def reservation_of(tmp_path):
    store = LocalStore(tmp_path)
    with Ledger.open(
        tmp_path / "ledger", delta=1e-5, caps={"task": 1e9}, max_debits_per_day=MOST_TODAY
    ) as ledger:

        def make(run):
            task = replace(task_of(), run_id=run)
            return Reservation(
                ledger=ledger,
                store=store,
                audit=AuditLog(tmp_path),
                task=task,
                plan=PLAN,
                allow=lambda _task, _plan: None,
                lives=lambda: True,
                stopping=lambda: False,
            )

        make.ledger = ledger
        yield make


def test_a_run_is_trained_for_as_often_as_its_plan_states(reservation_of):
    assert PLAN.charged_releases < MOST_TODAY
    waiting = [reservation_of("run-1") for _ in range(PLAN.charged_releases)]
    for reserve in waiting:
        reserve()
    one_more = reservation_of("run-1")
    with pytest.raises(TooManyDebitsError):
        one_more()
    refusal = refused_charge(one_more.failure)
    assert refusal.rule == "run_attempts"
    assert not any(character.isdigit() for character in refusal.public_reason)
    assert reservation_of.ledger.debits_of_run("run-1").trainings == PLAN.charged_releases
    # Another run has its own.
    reservation_of("run-2")()


def test_what_was_called_off_once_is_not_charged_after_all(reservation_of):
    """The method may have heard of it already, and have ended without a charge."""
    reserve, alive = reservation_of("run-1"), [False]
    reserve._lives = lambda: alive[0]
    with pytest.raises(WorkCalledOffError):
        reserve()
    alive[0] = True
    assert not reserve.wanted()
    with pytest.raises(WorkCalledOffError):
        reserve.require_wanted()
    assert reservation_of.ledger.debits_of_run("run-1").trainings == 0


def test_tasks_that_were_admitted_together_do_not_pass_the_days_limit(reservation_of):
    waiting = [reservation_of(f"run-{number}") for number in range(2 * MOST_TODAY)]
    for reserve in waiting[:MOST_TODAY]:
        reserve()
    for reserve in waiting[MOST_TODAY:]:
        # Also where the method never asked: the refusal is kept for the one who answers.
        reserve.settle()
        refusal = refused_charge(reserve.failure)
        assert (refusal.rule, refusal.public_reason) == ("attempts_per_day", ATTEMPTS_USED_UP)
    assert reservation_of.ledger.debits_today() == MOST_TODAY
