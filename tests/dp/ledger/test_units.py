"""Several unit kinds in one ledger, and trainings that are charged before they begin."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import pickle
import threading

import numpy as np
import pytest

from dp.accounting import rdp
from dp.accounting.charge import attempt_charges, run_charges, training_charges
from dp.accounting.compose import epsilon_of
from dp.config import Mode
from dp.errors import (
    BudgetExceededError,
    IdentityError,
    LedgerCorruptError,
    LedgerFormatError,
    Reason,
    ReceiptError,
    SpecError,
)
from dp.ledger import journal as journal_module
from dp.ledger import receipt as receipt_module
from dp.ledger.ledger import Head, Ledger
from dp.ledger.receipt import ISSUER, Receipt, TrainingReceipt
from tests.kit.dp.ledgers import (
    ADAPTER,
    DELTA,
    LOCAL,
    charge,
    entry,
    none_entry,
    opened,
    record_at,
    trained,
)

USER = dataclasses.replace(LOCAL, unit="user")
BOTH = attempt_charges(LOCAL, step=0)


def local_entry(number=0, attempt=0, *, charges=BOTH, **change):
    return entry(number, attempt, mode=Mode.RECORD_LOCAL, charges=charges, **change)


def step_entry(number=0, step=0, **change):
    charges = (charge("task", q=0.05, z=1.4, delta=1e-9),)
    return entry(number, step=step, mode=Mode.RECORD_DISTRIBUTED, **{"charges": charges, **change})


def test_one_record_debits_every_unit(path):
    assert [(one.unit, one.block) for one in BOTH] == [
        ("task", "metrics"),
        ("silo", "vector"),
        ("silo", "metrics"),
    ]
    with opened(path) as ledger:
        trained(ledger, 1)
        ledger.reserve(local_entry(1))
        ledger.reserve(local_entry(1, 1))
        spent, head = ledger.spent_epsilons(), ledger.head()
    assert head[0] == 3
    expected = epsilon_of((*training_charges(LOCAL), *BOTH, *BOTH), DELTA)
    assert spent == pytest.approx(expected, rel=1e-12)
    assert min(spent.values()) > 0
    with opened(path) as ledger:
        assert ledger.spent_epsilons() == spent
        assert ledger.head() == head
    assert [one["unit"] for one in record_at(path, 2)["charges"]] == ["task", "silo", "silo"]


def test_a_whole_run_costs_at_most_what_the_plan_reserved(path):
    with opened(path) as ledger:
        for number in range(3):
            trained(ledger, number)
            ledger.reserve(local_entry(number))
        spent = ledger.spent_epsilons()
    reserved = epsilon_of(run_charges(LOCAL, releases=4), DELTA)
    for unit, bound in reserved.items():
        assert 0 < spent[unit] < bound


@pytest.mark.parametrize("poor", ["task", "silo"])
def test_each_unit_has_its_own_cap_and_none_is_charged_alone(path, poor):
    with opened(path) as ledger:
        trained(ledger)
    with opened(path, **{poor: ledger_cost(poor) * 0.999}) as ledger:
        before, spent = path.read_bytes(), ledger.spent_epsilons()
        with pytest.raises(BudgetExceededError) as caught:
            ledger.reserve(local_entry())
        assert (caught.value.unit, caught.value.reason) == (poor, Reason.BUDGET_EXCEEDED)
        assert f"{poor}-level" in str(caught.value)
        assert caught.value.projected_epsilon > caught.value.epsilon_cap
        assert path.read_bytes() == before
        assert ledger.spent_epsilons() == spent
    with opened(path, **{poor: ledger_cost(poor)}) as ledger:
        ledger.reserve(local_entry())


def ledger_cost(unit):
    return epsilon_of((*training_charges(LOCAL), *BOTH), DELTA)[unit]


def test_a_unit_without_a_cap_pays_for_nothing(path):
    with Ledger.open(path, delta=DELTA, caps={"silo": 50.0}) as ledger:
        assert dict(ledger.caps) == {"silo": 50.0, "task": 0.0, "user": 0.0}
        with pytest.raises(TypeError):
            ledger.caps["task"] = 9.0
        ledger.reserve(entry(0))
        for unit in ("task", "user"):
            with pytest.raises(BudgetExceededError) as caught:
                ledger.reserve(step_entry(1, charges=(charge(unit),)))
            assert (caught.value.unit, caught.value.epsilon_cap) == (unit, 0.0)
        with pytest.raises(BudgetExceededError):
            trained(ledger, 1)
        ledger.reserve(none_entry(1))


def test_an_epsilon_of_zero_does_not_make_zero_a_budget(tmp_path):
    """With this much noise at this δ, epsilon is zero to the last digit."""
    quiet = (charge("task", z=1e9),)
    with Ledger.open(tmp_path / "ledger", delta=0.1, caps={"task": 0.0}) as ledger:
        assert ledger.projected_epsilons(quiet)["task"] == 0.0
        with pytest.raises(BudgetExceededError):
            ledger.reserve(step_entry(charges=quiet))
    with Ledger.open(tmp_path / "ledger", delta=0.1, caps={"task": 1e-9}) as ledger:
        ledger.reserve(step_entry(charges=quiet))


def test_a_cap_that_was_lowered_binds_its_own_unit_only(path):
    with opened(path) as ledger:
        ledger.reserve(entry(0))
    with opened(path, silo=0.01) as ledger:
        assert ledger.spent_epsilons()["silo"] > 0.01
        ledger.reserve(step_entry(1))
        with pytest.raises(BudgetExceededError):
            ledger.reserve(entry(2))


def test_failure_probabilities_come_off_delta_unit_by_unit(path):
    one = charge("task", z=4.0, delta=0.4 * DELTA)
    with opened(path) as ledger:
        ledger.reserve(step_entry(0, charges=(one,)))
        ledger.reserve(step_entry(0, 1, charges=(one,)))
        ledger.reserve(entry(1))
        spent = ledger.spent_epsilons()
        # The silo's release costs its tasks too, and takes no δ of theirs.
        task = one.rdp + one.rdp + rdp.rdp_gaussian(2.0, 1)
        left = DELTA - (0.4 * DELTA + 0.4 * DELTA)
        assert spent["task"] == pytest.approx(rdp.epsilon(task, left), rel=1e-12)
        assert spent["silo"] == rdp.epsilon(rdp.rdp_gaussian(4.0, 1), DELTA)
        # A third one leaves nothing of δ, and no cap is above infinity.
        assert ledger.projected_epsilons((one,))["task"] == math.inf
        with pytest.raises(BudgetExceededError) as caught:
            ledger.reserve(step_entry(2, charges=(one,)))
        assert caught.value.projected_epsilon == math.inf
    with opened(path) as ledger:
        assert ledger.spent_epsilons() == spent


# Trainings ---------------------------------------------------------------------------------------


def test_training_is_charged_durably_before_its_receipt_exists(path, monkeypatch):
    with opened(path) as ledger:
        receipt = trained(ledger, 2)
        assert (receipt.spec, receipt.steps_left) == (LOCAL, 20)
        spent = ledger.spent_epsilons()
        assert spent["task"] == epsilon_of(training_charges(LOCAL), DELTA)["task"]
        assert (spent["silo"], spent["user"]) == (0.0, 0.0)
        record = record_at(path, 1)
        divergences = record["charges"][0].pop("rdp")
        assert np.array_equal(divergences, rdp.rdp_subsampled(0.05, 1.4, 20))
        assert len(record.pop("prev_sha256")) == 64
        assert 20_000 < record.pop("day") < 2**16
        assert record == {
            "kind": "trained",
            "seq": 1,
            "run": "run",
            "round": 2,
            "mode": "record_local",
            "charges": [
                {
                    "unit": "task",
                    "block": "vector",
                    "q": 0.05,
                    "z": 1.4,
                    "steps": 20,
                    "delta": LOCAL.record.overflow_delta * 20,
                }
            ],
            "adapter_sha256": ADAPTER.hex(),
            "spec_sha256": LOCAL.sha256().hex(),
        }

        def full(*_):
            raise OSError(28, "no space left")

        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "fsync", full)
            with pytest.raises(LedgerCorruptError, match="no space"):
                trained(ledger, 3)
        assert ledger.spent_epsilons() == spent


def test_training_over_budget_is_refused_before_it_begins(path):
    cost = epsilon_of(training_charges(LOCAL) * 2, DELTA)["task"]
    with opened(path, task=cost) as ledger:
        trained(ledger, 0)
        # Begun again after a crash: charged again.
        trained(ledger, 0)
        before = path.read_bytes()
        for number in (0, 1):
            with pytest.raises(BudgetExceededError) as caught:
                trained(ledger, number)
            assert caught.value.unit == "task"
        assert path.read_bytes() == before


def test_a_task_pays_for_its_user_and_a_user_for_no_task(path):
    with opened(path) as ledger:
        trained(ledger, 0)
        trained(ledger, 0, spec=USER)
        spent = ledger.spent_epsilons()
    (own,) = training_charges(LOCAL)
    assert spent["user"] == epsilon_of((own,), DELTA)["task"]
    both = own.rdp + rdp.rdp_replaced(0.05, 1.4, 20)
    assert spent["task"] == pytest.approx(rdp.epsilon(both, DELTA - 2 * own.delta), rel=1e-12)
    assert spent["silo"] == 0.0


def test_a_delta_is_released_only_where_its_training_was_charged(path):
    with opened(path) as ledger:
        with pytest.raises(IdentityError, match="no training"):
            ledger.reserve(local_entry(1))
        trained(ledger, 1)
        trained(ledger, 1, run="other")
        ledger.reserve(local_entry(1))
        with pytest.raises(IdentityError, match="no training"):
            ledger.reserve(local_entry(2))
    with opened(path) as ledger:
        ledger.reserve(local_entry(1, 1))
        with pytest.raises(IdentityError, match="no training"):
            ledger.reserve(local_entry(2))
        trained(ledger, 2)
        ledger.reserve(local_entry(2))


def test_rounds_that_are_over_are_not_trained(path):
    with opened(path) as ledger:
        trained(ledger, 3)
        with pytest.raises(IdentityError, match="over"):
            trained(ledger, 2)
        ledger.mark_joined(none_entry(5).identity, bytes(32))
        with pytest.raises(IdentityError, match="over"):
            trained(ledger, 4)
        trained(ledger, 5)
        trained(ledger, 0, run="other")
    with opened(path) as ledger, pytest.raises(IdentityError, match="over"):
        trained(ledger, 4)


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.SILO, Mode.RECORD_DISTRIBUTED])
def test_only_local_training_is_charged(path, mode):
    noise = 0.0 if mode is Mode.NONE else 1.4
    record = None
    if mode is Mode.RECORD_DISTRIBUTED:
        record = dataclasses.replace(LOCAL.record, delta_clip_l2=None, silo_noise_multiplier=0.0)
    spec = dataclasses.replace(
        LOCAL, mode=mode, record=record, noise_multiplier=noise, metrics_noise_multiplier=noise
    )
    with opened(path) as ledger, pytest.raises(SpecError, match="charges no such training"):
        trained(ledger, spec=spec)
    with pytest.raises(ReceiptError, match="no training"):
        TrainingReceipt(issuer=ISSUER, spec=spec)


@pytest.mark.parametrize(
    "change", [{"run": ""}, {"round": -1}, {"round": True}, {"adapter_sha256": b"short"}]
)
def test_impossible_trainings(path, change):
    fields = {"run": "run", "round": 0, "spec": LOCAL, "adapter_sha256": ADAPTER, **change}
    with opened(path) as ledger:
        with pytest.raises(SpecError):
            ledger.reserve_training(**fields)
        assert ledger.head()[0] == 0


# Receipts of trainings ---------------------------------------------------------------------------


def test_a_training_receipt_has_the_steps_that_were_charged_and_no_more():
    receipt = TrainingReceipt(issuer=ISSUER, spec=LOCAL)
    taken = []

    def take():
        while True:
            try:
                receipt.take_step()
            except ReceiptError:
                return
            taken.append(1)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == LOCAL.record.steps_per_round
    assert receipt.steps_left == 0
    with pytest.raises(ReceiptError, match="used up"):
        receipt.take_step()


def test_training_receipts_cannot_be_made_copied_or_forked(monkeypatch):
    with pytest.raises(ReceiptError, match="only the ledger"):
        TrainingReceipt(issuer=object(), spec=LOCAL)
    receipt = TrainingReceipt(issuer=ISSUER, spec=LOCAL)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ReceiptError, match="copied"):
            attempt(receipt)
    with pytest.raises(AttributeError):
        receipt.steps_left = 99
    release = Receipt(
        issuer=ISSUER,
        descriptor_sha256=bytes(32),
        dimension=3,
        mode=Mode.NONE,
        record=Head(seq=1, sha256=bytes(32)),
    )
    child = os.getpid() + 1
    monkeypatch.setattr(receipt_module.os, "getpid", lambda: child)
    with pytest.raises(ReceiptError, match="forked"):
        receipt.take_step()
    with pytest.raises(ReceiptError, match="forked"):
        release.consume(descriptor_sha256=bytes(32), dimension=3)
    assert receipt.steps_left == LOCAL.record.steps_per_round


# Formats -----------------------------------------------------------------------------------------


def test_a_ledger_of_the_first_format_is_refused_with_what_to_do(path):
    journal = journal_module.Journal(path)
    journal.load()
    journal.append({"kind": "genesis", "format": 1, "id": "00" * 16})
    journal.append({"kind": "signed_r3", "run": "r", "round": 0})
    journal.close()
    before = path.read_bytes()
    with pytest.raises(LedgerFormatError, match="lower the caps") as caught:
        opened(path)
    assert caught.value.reason is Reason.LEDGER_FORMAT
    assert "format 1" in str(caught.value)
    assert path.read_bytes() == before
    # The lock did not outlive the refusal.
    reopened = journal_module.Journal(path)
    assert json.loads(json.dumps(reopened.load()[0]))["format"] == 1
    reopened.close()
