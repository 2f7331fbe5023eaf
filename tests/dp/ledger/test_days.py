"""Debits of a UTC day: counted by replay, and no clock that is set back makes room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp.errors import LedgerCorruptError, SpecError, TooManyDebitsError
from dp.ledger.counts import DAY_S, DayCount
from dp.ledger.journal import Journal
from dp.ledger.ledger import Ledger
from tests.kit.dp.ledgers import DELTA, entry, none_entry, record_at, trained

NOON = 20_000 * DAY_S + DAY_S // 2


class Clock:
    """A clock that is set."""

    def __init__(self, now=NOON):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def opened(tmp_path, clock):
    def open_(most=None):
        caps = {"silo": 1e3, "task": 1e3}
        return Ledger.open(
            tmp_path / "ledger", delta=DELTA, caps=caps, clock=clock, max_debits_per_day=most
        )

    return open_


def test_attempts_and_trainings_count_across_restarts_until_midnight(opened, clock):
    with opened() as ledger:
        ledger.reserve(entry(1))
        ledger.reserve(none_entry(2))
        ledger.mark_agreed(none_entry(2).identity)
        ledger.mark_joined(none_entry(3).identity, bytes(32))
        trained(ledger, 4)
        assert ledger.debits_today() == 3
    clock.now += DAY_S // 2 - 1
    with opened() as ledger:
        assert ledger.debits_today() == 3
        clock.now += 1
        assert ledger.debits_today() == 0
        ledger.reserve(entry(4, 1, run="other"))
        assert ledger.debits_today() == 1


def test_a_full_day_takes_no_debit_of_either_kind_and_the_next_one_does(opened, clock):
    with opened() as ledger:
        ledger.reserve(entry(1))
        trained(ledger, 2)
    with opened(most=2) as ledger:
        for refuse in (
            lambda: ledger.reserve(entry(2)),
            lambda: ledger.reserve(none_entry(2)),
            lambda: trained(ledger, 3),
        ):
            with pytest.raises(TooManyDebitsError) as refused:
                refuse()
            assert not refused.value.of_run
        assert ledger.head()[0] == 2
        clock.now += DAY_S
        ledger.reserve(entry(2))
        trained(ledger, 3)
        with pytest.raises(TooManyDebitsError):
            trained(ledger, 4)


def test_debits_of_a_run_are_counted_by_kind_across_restarts(opened):
    with opened() as ledger:
        trained(ledger, 1)
        ledger.reserve(entry(1))
        ledger.reserve(none_entry(1, 1))
        ledger.reserve(none_entry(1, step=1))
        ledger.reserve(none_entry(1, run="other"))
    with opened() as ledger:
        assert ledger.debits_of_run("run") == (3, 2, 1)
        assert ledger.debits_of_run("other") == (1, 1, 0)
        assert ledger.debits_of_run("another") == (0, 0, 0)


def test_the_day_is_in_the_debit_and_nowhere_else(opened, tmp_path):
    with opened() as ledger:
        ledger.mark_joined(entry(1).identity, bytes(32))
        ledger.reserve(entry(1))
        ledger.mark_agreed(entry(1).identity)
        trained(ledger, 2)
    days = [record_at(tmp_path / "ledger", number).get("day") for number in range(5)]
    assert days == [None, None, 20_000, None, 20_000]


@pytest.mark.parametrize("back_s", [DAY_S, 40 * DAY_S, 30_000 * DAY_S])
def test_a_clock_that_is_set_back_empties_no_count_and_begins_none(opened, clock, back_s):
    with opened() as ledger:
        ledger.reserve(entry(1))
    clock.now -= back_s
    with opened() as ledger:
        assert ledger.debits_today() == 1
        ledger.reserve(entry(2))
        assert ledger.debits_today() == 2
    clock.now += back_s
    with opened() as ledger:
        assert ledger.debits_today() == 2


def test_a_refused_debit_is_not_counted(opened):
    with opened() as ledger:
        ledger.reserve(entry(1))
        with pytest.raises(Exception, match="already spent"):
            ledger.reserve(entry(1))
        assert ledger.debits_today() == 1


@given(days=st.lists(st.integers(0, 5), max_size=30))
def test_no_walk_of_the_clock_counts_fewer_than_the_day_has_seen(days):
    """Against a count of everything that was debited while the clock showed the newest day."""
    clock = Clock()
    count, seen = DayCount(clock), []
    for day in days:
        clock.now = day * DAY_S
        count.add(count.today())
        seen.append(day)
        assert count.debits() >= sum(one == max(seen) for one in seen)
        assert count.today() == max(seen)


@pytest.mark.parametrize("day", [19_999, -1, 2**32])
def test_days_do_not_go_back(day):
    count = DayCount(Clock())
    count.add(20_000)
    with pytest.raises(SpecError):
        count.add(day)


@pytest.mark.parametrize("day", [19_999, 20_000.0, None, -1])
def test_a_debit_of_an_impossible_day_is_damage(opened, tmp_path, day):
    path = tmp_path / "ledger"
    with opened() as ledger:
        ledger.reserve(entry(1))
        ledger.reserve(entry(2))
    forged = {k: v for k, v in record_at(path, 2).items() if k not in ("seq", "prev_sha256")}
    forged = {**forged, "round": 3, "day": day}
    if day is None:
        del forged["day"]
    journal = Journal(path)
    journal.load()
    journal.append(forged)
    journal.close()
    with pytest.raises(LedgerCorruptError):
        opened()
