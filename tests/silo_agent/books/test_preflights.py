"""Answers to pre-flights on disk: once each, so many a day, whatever restarts and clocks do."""

import os
import stat

import pytest

import silo_agent.books.preflights as book_module
from dp.ledger.counts import DAY_S
from federation.chain.preflight import PreflightAnswer, Verdict
from federation.plan.negotiation import Offer
from silo_agent.books.preflights import PREFLIGHTS_FILE, Preflights
from silo_agent.errors import LocalStoreError
from tests.kit.secagg.secagg_samples import signing_key

ME = "silo-000"


class Clock:
    def __init__(self):
        self.now = 20_000.5 * DAY_S

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def opened(tmp_path, clock):
    return lambda most=2: Preflights(tmp_path, silo_id=ME, most_per_day=most, clock=clock)


TERMS = Offer(local_epochs=2, start_after_unix_s=1_800_000_000, epsilon_quarters=9)


def answer(number, verdict=Verdict.ACCEPT, rule="", offer=None):
    made = PreflightAnswer(
        preflight_sha256=number.to_bytes(32, "big"),
        silo_id=ME,
        verdict=verdict,
        rule=rule,
        offer=offer,
    )
    return made.sign(signing_key(ME))


def test_an_answer_is_there_again_after_a_restart_byte_for_byte(opened, tmp_path):
    first, second = answer(1, Verdict.REFUSE, "clip"), answer(2, Verdict.WAITS_FOR_APPROVAL)
    third = answer(3, Verdict.OFFER, "schedule", TERMS)
    book = opened(3)
    for one in (first, second, third):
        assert book.stored(one.preflight_sha256) is None
        book.keep(one)
    again = opened(3)
    for one in (first, second, third):
        assert again.stored(one.preflight_sha256) == one
    assert stat.S_IMODE((tmp_path / PREFLIGHTS_FILE).stat().st_mode) == 0o600


def test_a_day_holds_so_many_and_no_restart_or_clock_gives_more(opened, clock):
    book = opened()
    for number in (1, 2):
        assert not book.used_up
        book.keep(answer(number))
    assert book.used_up
    assert opened().used_up
    clock.now -= 3 * DAY_S
    assert book.used_up
    assert opened().used_up
    clock.now += 4 * DAY_S
    assert not opened().used_up
    # A day that was counted is not left again.
    opened().keep(answer(3))
    clock.now -= 2 * DAY_S
    book = opened()
    book.keep(answer(4))
    assert book.used_up


def test_a_site_may_answer_none(opened):
    assert opened(0).used_up


def test_it_does_not_grow_without_end(opened, monkeypatch, tmp_path):
    monkeypatch.setattr(book_module, "MAX_ANSWERS", 3)
    book = opened(1000)
    for number in range(5):
        book.keep(answer(number))
    again = opened(1000)
    for one in (book, again):
        kept = [one.stored(answer(number).preflight_sha256) is not None for number in range(5)]
        assert kept == [False, False, True, True, True]
    assert len((tmp_path / PREFLIGHTS_FILE).read_bytes().splitlines()) == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"offer":[2,', b'"offer":[101,'),
        (b'"offer":[2,', b'"offer":[2.0,'),
        (b'"offer":[2,', b'"offer":['),
        (b'"offer":[2,', b'"offer":[2,0,'),
        (b'"offer":[', b'"offer":"["},["'),
        (b'"offer"', b'"other"'),
        (b'"verdict":"offer"', b'"verdict":"refuse"'),
    ],
)
def test_terms_that_are_none_are_damage(opened, tmp_path, old, new):
    opened().keep(answer(1, Verdict.OFFER, "schedule", TERMS))
    path = tmp_path / PREFLIGHTS_FILE
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(LocalStoreError, match="no pre-flight is answered"):
        opened()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[:40] + b"\n",
        lambda whole: whole + b"[]\n",
        lambda whole: whole.replace(b'"accept"', b'"perhaps"'),
        lambda whole: whole.replace(b'"rule":""', b'"rule":"clip"'),
        lambda whole: whole.replace(b'"day":20000', b'"day":true'),
        lambda whole: whole + whole.replace(b'"day":20000', b'"day":19999'),
        lambda whole: whole * 100_000,
    ],
)
def test_a_damaged_file_answers_nothing(opened, tmp_path, spoil):
    opened().keep(answer(1))
    path = tmp_path / PREFLIGHTS_FILE
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(LocalStoreError, match="no pre-flight is answered"):
        opened()


def test_a_file_that_is_far_too_long_is_not_read_into_memory(opened, tmp_path):
    opened().keep(answer(1))
    os.truncate(tmp_path / PREFLIGHTS_FILE, 1 << 42)
    with pytest.raises(LocalStoreError, match="no pre-flight is answered"):
        opened()


def test_what_the_disk_refused_was_not_answered(opened, monkeypatch):
    book = opened()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(book_module, "replace_file", full)
        with pytest.raises(LocalStoreError, match="No space left"):
            book.keep(answer(1))
    assert book.stored(answer(1).preflight_sha256) is None
    book.keep(answer(1))
    assert book.stored(answer(1).preflight_sha256) == answer(1)
