"""One ledger, releases of every kind: who pays, what is capped, what stands beside ε."""

from __future__ import annotations

import dataclasses

import pytest

from dp.accounting import rdp
from dp.accounting.charge import attempt_charges
from dp.accounting.compose import Epsilon, Spent
from dp.config import Mode
from dp.errors import BudgetExceededError
from dp.ledger.journal import Journal
from dp.ledger.ledger import Ledger
from dp.ledger.opening import carried_fields
from tests.kit.dp.ledgers import (
    ADAPTER,
    DELTA,
    LOCAL,
    entry,
    none_entry,
    opened,
    record_at,
    trained,
)

SILO = dataclasses.replace(LOCAL, mode=Mode.SILO, record=None, noise_multiplier=4.0)
BARE = dataclasses.replace(
    LOCAL, record=dataclasses.replace(LOCAL.record, silo_noise_multiplier=0.0)
)
RELEASE = attempt_charges(SILO, step=0)
INSIDE = Spent.of(RELEASE, releases=1).epsilons(DELTA)["task"].epsilon
OWN = Spent.of(RELEASE, releases=1).epsilons(DELTA)["silo"].epsilon


def silo_entry(number, **change):
    return entry(number, charges=RELEASE, **change)


def capped(path, **caps):
    return Ledger.open(path, delta=DELTA, caps=caps)


def test_a_smaller_kind_that_is_not_named_is_shown_and_not_capped(path):
    with capped(path, silo=3 * OWN) as ledger:
        ledger.reserve(silo_entry(0))
        found = ledger.epsilons()
    assert found == {"silo": Epsilon(OWN), "task": Epsilon(INSIDE), "user": Epsilon(INSIDE)}
    assert INSIDE > 1.5 * OWN


@pytest.mark.parametrize("named", ["task", "user"])
def test_a_smaller_kind_that_is_named_refuses_the_release(path, named):
    with capped(path, silo=3 * OWN, **{named: INSIDE}) as ledger:
        ledger.reserve(silo_entry(0))
        before = path.read_bytes()
        with pytest.raises(BudgetExceededError, match=f"projected {named}-level") as caught:
            ledger.reserve(silo_entry(1))
        assert (caught.value.unit, caught.value.epsilon_cap) == (named, INSIDE)
        assert path.read_bytes() == before


def test_flags_stand_for_ever_and_only_where_they_belong(path):
    bare = attempt_charges(BARE, step=0)
    with opened(path) as ledger:
        trained(ledger, 1, spec=BARE)
        assert ledger.epsilons()["silo"] == Epsilon(0.0)
        for attempt in range(2):
            ledger.reserve(entry(1, attempt, mode=Mode.RECORD_LOCAL, charges=bare))
        trained(ledger, 2)
        ledger.reserve(entry(2, mode=Mode.RECORD_LOCAL, charges=attempt_charges(LOCAL, step=0)))
        ledger.reserve(silo_entry(3))
        ledger.reserve(none_entry(4))
        found = ledger.epsilons()
    counts = {kind: (e.partial_releases, e.unprotected_releases) for kind, e in found.items()}
    assert counts == {"silo": (2, 1), "task": (0, 1), "user": (2, 1)}
    with opened(path) as ledger:
        assert ledger.epsilons() == found
        assert dict(ledger.carried().partial) == {"silo": 2, "task": 0, "user": 2}


# A ledger of format 2 ----------------------------------------------------------------------------


def old_charge(unit, *, q=1.0, z, steps=1, delta=0.0):
    """A charge as format 2 wrote it: without a block, silo charges with one joint z."""
    divergences = rdp.rdp_subsampled(q, z, steps).tolist()
    return {"unit": unit, "q": q, "z": z, "steps": steps, "delta": delta, "rdp": divergences}


def joint(*multipliers):
    return sum(z**-2 for z in multipliers) ** -0.5


def write_old_ledger(path):
    """A task run, a silo run and an upload in mode none, in the frames of an earlier release."""
    day = {"day": 20_000}
    training = {
        "kind": "trained",
        "run": "tasks",
        "round": 1,
        "mode": "record_local",
        "charges": [old_charge("task", q=0.05, z=1.4, steps=20, delta=1e-9)],
        "adapter_sha256": ADAPTER.hex(),
        "spec_sha256": "00" * 32,
        **day,
    }

    def spent(run, mode, *charges):
        identity = {"run": run, "round": 1, "step": 0, "part": 0, "attempt": 1}
        digest = {"descriptor_sha256": "00" * 32}
        return {
            "kind": "spent",
            **identity,
            "mode": mode,
            "charges": list(charges),
            "d": 10,
            **digest,
            **day,
        }

    journal = Journal(path)
    journal.load()
    journal.append({"kind": "genesis", "format": 2, "id": "0a" * 16})
    journal.append(training)
    journal.append(spent("tasks", "record_local", old_charge("task", z=6.0)))
    journal.append(spent("silos", "silo", old_charge("silo", z=joint(4.0, 6.0))))
    journal.append(spent("bare", "none"))
    tip = journal.length - 1, journal.tip
    journal.close()
    return tip


def test_an_old_ledger_is_recomputed_and_goes_on(path):
    head = write_old_ledger(path)
    content = path.read_bytes()
    task = rdp.rdp_subsampled(0.05, 1.4, 20) + rdp.rdp_gaussian(6.0, 1)
    silo = rdp.rdp_gaussian(joint(4.0, 6.0), 1)
    with opened(path) as ledger:
        found = ledger.epsilons()
        ledger.require_contains(*head)
        assert ledger.opening is None
    assert path.read_bytes() == content
    kept_apart = rdp.epsilon(task, DELTA - 1e-9)
    assert found["task"].epsilon == pytest.approx(
        rdp.epsilon(task + 4 * silo, DELTA - 1e-9), rel=1e-12
    )
    assert found["task"].epsilon > kept_apart + 1.0
    assert found["silo"] == Epsilon(rdp.epsilon(silo, DELTA), 1, 1)
    assert found["user"] == Epsilon(rdp.epsilon(4 * silo, DELTA), 1, 1)
    # It is appended to, with blocks, and opens again.
    with opened(path) as ledger:
        ledger.reserve(silo_entry(2, run="silos"))
        longer, tip = ledger.epsilons(), ledger.head()
        carried = carried_fields(ledger.carried())
    assert tip[0] == head[0] + 1
    assert [one["block"] for one in record_at(path, tip[0])["charges"]] == ["vector", "metrics"]
    with opened(path) as ledger:
        assert ledger.epsilons() == longer
        assert carried_fields(ledger.carried()) == carried
        ledger.require_contains(*head)
    assert longer["silo"].epsilon == pytest.approx(rdp.epsilon(2 * silo, DELTA), rel=1e-12)


def test_an_old_ledger_above_a_cap_opens_and_refuses_releases_only(path):
    write_old_ledger(path)
    with opened(path) as ledger:
        over = ledger.epsilons()["task"].epsilon * 0.9
    with capped(path, silo=100.0, task=over) as ledger:
        # Following and joining go on, and so does what costs no task anything.
        ledger.mark_joined(none_entry(2).identity, bytes(32))
        ledger.reserve(none_entry(2))
        with pytest.raises(BudgetExceededError, match="task-level") as caught:
            ledger.reserve(silo_entry(2, run="silos"))
        assert caught.value.epsilon_cap == over
        with pytest.raises(BudgetExceededError, match="task-level"):
            trained(ledger, 2, run="tasks")
    # A policy that names the silo alone goes on working.
    with capped(path, silo=100.0) as ledger:
        ledger.reserve(silo_entry(2, run="silos"))
