"""When silos were last heard of: what no restart may forget, and what keeping it costs."""

import pytest
from sqlalchemy import event

from server.context import Liveness
from server.store import Store
from tests.kit.server.store_samples import silo_row

NAMES = [f"hospital-{number:03}" for number in range(200)]


class Clock:
    now = 1_800_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def store(tmp_path):
    made = Store(f"sqlite:///{tmp_path}/coordinator.db", create=True)
    for number, name in enumerate(NAMES):
        made.silos.enrol(
            silo_row(silo_id=name, spiffe_uri=f"spiffe://f/{name}",
                 certificate_sha256=number.to_bytes(32, "big"))
        )  # fmt: skip
    yield made
    made.close()


def seen(store):
    return {row.silo_id: row.last_seen_unix_s for row in store.silos.list()}


def test_a_silo_that_died_before_a_restart_is_silent_after_it(store):
    clock = Clock()
    before = Liveness(clock)
    before.touch(NAMES[0])
    before.note(store)
    clock.now += 7200
    after = Liveness(clock, seen=seen(store))
    assert after.last_seen(NAMES[0]) == clock.now - 7200
    assert after.last_seen(NAMES[1]) == 0
    # Everybody is given the time to come back, and no more than that.
    assert after.alive(NAMES[0])
    clock.now += 21
    assert not after.alive(NAMES[0])


def test_a_clock_that_was_ahead_keeps_nobody_alive(store):
    clock = Clock()
    before = Liveness(clock)
    clock.now += 86_400
    before.touch(NAMES[0])
    before.note(store)
    clock.now -= 86_400
    after = Liveness(clock, seen=seen(store))
    assert after.last_seen(NAMES[0]) == clock.now
    clock.now += 21
    assert not after.alive(NAMES[0])


def test_two_hundred_silos_that_poll_are_one_transaction_a_note(store):
    clock, commits = Clock(), []
    liveness = Liveness(clock, seen=seen(store))
    event.listen(store._database._engine, "commit", commits.append)
    for _ in range(8):
        clock.now += 8
        for name in NAMES:
            liveness.touch(name)
    assert commits == []
    liveness.note(store)
    assert len(commits) == 1
    # Nobody called since.
    liveness.note(store)
    assert len(commits) == 1
    assert set(seen(store).values()) == {clock.now}


def test_a_note_that_failed_is_made_up_for(store, monkeypatch):
    clock = Clock()
    liveness = Liveness(clock)
    liveness.touch(NAMES[0])
    with monkeypatch.context() as away:
        away.setattr(store.silos, "touch", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            liveness.note(store)
    liveness.note(store)
    assert seen(store)[NAMES[0]] == clock.now


def test_who_comes_is_noted_at_once_and_who_stays_once_a_minute(store):
    clock, commits = Clock(), []
    liveness = Liveness(clock, seen=seen(store))
    event.listen(store._database._engine, "commit", commits.append)

    def noted(*names, later_s):
        clock.now += later_s
        for name in names:
            liveness.touch(name)
        before = len(commits)
        liveness.note(store, after_s=60.0)
        return len(commits) - before

    assert noted(NAMES[0], later_s=2) == 1
    assert seen(store)[NAMES[0]] == clock.now
    assert noted(NAMES[0], later_s=40) == 0
    # With the one who comes, whoever called meanwhile; the minute of both begins anew.
    assert noted(NAMES[0], NAMES[1], later_s=10) == 1
    assert seen(store)[NAMES[0]] == seen(store)[NAMES[1]] == clock.now
    assert noted(NAMES[0], NAMES[1], later_s=59) == 0
    assert noted(NAMES[0], NAMES[1], later_s=1) == 1
    # A clock that was set back.
    assert noted(NAMES[0], later_s=-3600) == 1
    assert noted(later_s=3600) == 0
