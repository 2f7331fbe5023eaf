"""A ledger that begins with what was spent before it."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from dp.errors import LedgerCorruptError, OpeningError, Reason, SpecError
from dp.ledger import journal as journal_module
from dp.ledger.ledger import Ledger
from dp.ledger.opening import carried_fields, read_carried
from tests.kit.dp.ledgers import DELTA, LOCAL, entry, none_entry, opened, record_at, trained


def before(path, name="before"):
    """What a data set spent: a training, a silo release and one in mode none."""
    with opened(path.with_name(name)) as ledger:
        trained(ledger, 0)
        ledger.reserve(entry(1))
        ledger.reserve(none_entry(2))
        return ledger.carried(), ledger.epsilons()


def begun(path, carried):
    caps = dict.fromkeys(("silo", "task", "user"), 100.0)
    return Ledger.open(path, delta=DELTA, caps=caps, opening=carried)


def test_a_new_ledger_goes_on_where_the_old_one_ended(path):
    carried, epsilons = before(path)
    with begun(path, carried) as ledger:
        assert ledger.epsilons() == epsilons
        assert ledger.unprotected_releases == 1
        ledger.reserve(entry(1))
        both = ledger.epsilons()
    with opened(path.with_name("whole")) as whole:
        trained(whole, 0)
        whole.reserve(entry(1))
        whole.reserve(none_entry(2))
        whole.reserve(entry(3))
        for kind, wanted in whole.epsilons().items():
            assert both[kind].epsilon == pytest.approx(wanted.epsilon, rel=1e-12)
            assert (both[kind].partial_releases, both[kind].unprotected_releases) == (0, 1)
    with opened(path) as ledger:
        assert ledger.epsilons() == both
        assert carried_fields(ledger.opening) == carried_fields(carried)
    # The third ledger in a row carries both.
    with opened(path) as ledger, begun(path.with_name("third"), ledger.carried()) as third:
        assert third.epsilons() == both


def test_whose_the_newest_sum_without_noise_was_outlives_the_ledger(path):
    carried, _ = before(path)
    known = replace(carried, cohort=("a", "b", "c"), elsewhere={"cardiology": ("a", "x")})
    assert "cohort" not in carried_fields(carried)
    assert begun(path.with_name("unknown"), carried).cohort is None
    with begun(path, known) as ledger:
        assert ledger.cohort == {"a", "b", "c"}
        with begun(path.with_name("third"), ledger.carried()) as third:
            assert third.cohort == {"a", "b", "c"}
    with opened(path) as ledger:
        assert ledger.cohort == {"a", "b", "c"}
        ledger.reserve(none_entry(9))
        ledger.mark_agreed(none_entry(9).identity, cohort=("a", "b"))
        newer = ledger.carried()
    assert (newer.cohort, newer.elsewhere) == (("a", "b"), {"cardiology": ("a", "x")})
    with opened(path) as ledger:
        assert ledger.cohort == {"a", "b"}
    with pytest.raises(OpeningError, match="something else"):
        begun(path, replace(known, cohort=("a", "b")))


def test_an_opening_is_said_once(path):
    carried, _ = before(path)
    with begun(path, carried):
        pass
    held = path.read_bytes()
    with begun(path, carried) as ledger:
        more = ledger.carried() + carried
    for other in (more, read_carried(carried_fields(carried) | {"unprotected": 2})):
        with pytest.raises(OpeningError, match="something else") as caught:
            begun(path, other)
        assert caught.value.reason is Reason.LEDGER_OPENING
    assert path.read_bytes() == held
    bare = path.with_name("bare")
    opened(bare).close()
    with pytest.raises(OpeningError, match="nothing spent"):
        begun(bare, carried)


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_crash_at_the_first_record_forgets_nothing(path, monkeypatch, failing):
    """Either nothing is there, and the opening is given again, or all of it is."""
    carried, epsilons = before(path)

    def fail(*_):
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, failing, fail)
        with pytest.raises((LedgerCorruptError, OSError)):
            begun(path, carried)
    with begun(path, carried) as ledger:
        assert ledger.epsilons() == epsilons
    whole = path.read_bytes()
    for cut in (1, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with begun(path, carried) as ledger:
            assert ledger.epsilons() == epsilons


def test_the_first_record_holds_the_opening(path):
    carried, _ = before(path)
    begun(path, carried).close()
    genesis = record_at(path, 0)
    assert genesis["opening"] == json.loads(json.dumps(carried_fields(carried)))
    assert genesis["format"] == 3


def change(*keys, to):
    def apply(fields):
        place = fields
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    return apply


@pytest.mark.parametrize(
    "spoil",
    [
        change("unprotected", to=-1),
        change("unprotected", to=True),
        change("unprotected", to=1 << 53),
        change("unprotected", to=1.0),
        change("partial", "task", to=1),
        change("partial", to={"silo": 0}),
        change("partial", "row", to=0),
        change("kinds", to=[]),
        change("kinds", "silo", to=None),
        change("kinds", "silo", "failure", to=math.nan),
        change("kinds", "silo", "failure", to=-1e-9),
        change("kinds", "silo", "failure", to=0),
        change("kinds", "user", "rdp", 3, to=math.inf),
        change("kinds", "user", "rdp", 3, to=-1.0),
        change("kinds", "user", "rdp", 3, to="1"),
        change("kinds", "user", "rdp", to=[0.0] * 259),
        change("note", to=1),
        change("cohort", to=None),
        change("cohort", to=[]),
        change("cohort", to=["b", "a"]),
        change("elsewhere", to=None),
        change("elsewhere", to={}),
        change("elsewhere", to={"": ["a"]}),
        change("elsewhere", to={"x" * 129: ["a"]}),
        change("elsewhere", to={"cardiology": ["a", "a"]}),
        change("elsewhere", to={f"federation-{k}": ["a"] for k in range(16)}),
        lambda fields: fields.pop("partial"),
        lambda fields: fields["kinds"].pop("task"),
    ],
)
def test_an_opening_of_another_form_is_refused(path, spoil):
    carried, _ = before(path)
    fields = copy.deepcopy(carried_fields(carried))
    read_carried(fields)
    spoil(fields)
    with pytest.raises(SpecError):
        read_carried(fields)
    for value in (None, 7, [], "opening"):
        with pytest.raises(SpecError):
            read_carried(value)


def test_what_no_ledger_holds_is_not_carried(path):
    carried, _ = before(path)
    carried.kinds["silo"].rdp[5] = np.inf
    with pytest.raises(SpecError):
        begun(path, carried)


def test_a_training_is_carried_with_its_failure_probability(path):
    carried, _ = before(path)
    assert carried.kinds["task"].failure == pytest.approx(20 * LOCAL.record.overflow_delta)
