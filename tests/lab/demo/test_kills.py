"""Who dies when in the demo; the demo itself does it to real processes."""

import pytest

from lab.demo.kills import COORDINATOR, Kills
from lab.demo.scenario import DemoSettings

VICTIM = "silo-d"


class Processes:
    """Notes what a federation would be told."""

    def __init__(self):
        self.told = []

    def kill(self, name):
        self.told.append(("kill", name))

    def start_silo(self, name):
        self.told.append(("start", name))

    def start_coordinator(self):
        self.told.append(("start", COORDINATOR))


def status(number, phase, waiting=()):
    waiting_for = [{"silo_id": silo_id} for silo_id in waiting]
    return {"current": {"round": number, "phase": phase, "waiting_for": waiting_for}}


def whole_round(number):
    return [
        status(number, "training", ("silo-a", VICTIM)),
        status(number, "training", ("silo-a",)),
        status(number, "share_keys"),
        status(number, "masked_input", ("silo-b",)),
        status(number, "finished"),
    ]


def told(rounds, statuses):
    processes = Processes()
    kills = Kills(loopback=processes, victim=VICTIM, rounds=rounds, say=lambda text: None)
    for one in statuses:
        kills.see(one)
    kills.finish()
    return processes.told, kills.killed


SILO = [("kill", VICTIM), ("start", VICTIM)]
RELAY = [("kill", COORDINATOR), ("start", COORDINATOR)]


@pytest.mark.parametrize(
    ("rounds", "expected"), [(1, RELAY), (2, SILO + RELAY), (3, SILO + RELAY), (8, SILO + RELAY)]
)
def test_each_dies_once_and_comes_back(rounds, expected):
    statuses = [one for number in range(1, rounds + 1) for one in whole_round(number)]
    done, killed = told(rounds, [{}, *statuses])
    assert done == expected
    assert killed == tuple(name for what, name in expected if what == "kill")


def test_the_silo_dies_after_it_reported_ready_and_has_a_round_to_come_back_to():
    done, _ = told(3, [*whole_round(1), *whole_round(2)[:1]])
    assert done == []
    processes = Processes()
    kills = Kills(loopback=processes, victim=VICTIM, rounds=3, say=lambda text: None)
    kills.see(whole_round(2)[1])
    assert processes.told == [("kill", VICTIM)]
    assert DemoSettings().recipe.rounds >= 3


def test_the_coordinator_dies_only_while_an_attempt_is_open():
    opening = [status(3, phase, ("silo-a",)) for phase in ("", "training")]
    done, killed = told(3, [*whole_round(1), *whole_round(2), *opening, status(3, "finished")])
    assert (done, killed) == (SILO, (VICTIM,))
    done, killed = told(3, [*whole_round(1), *whole_round(2), *opening, status(3, "unmask")])
    assert (done, killed) == (SILO + RELAY, (VICTIM, COORDINATOR))


def test_a_silo_that_died_in_the_last_round_still_judges():
    done, _ = told(2, whole_round(1)[:2])
    assert done == SILO
