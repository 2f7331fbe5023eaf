"""A run that the roster's silos cannot fill is refused, whoever starts it and however."""

import asyncio
import re

import pytest

from server.errors import RosterError
from server.members.presence import members_of
from server.members.silence import SILENT_S, Member, is_silent, silence
from server.states import RunState, SiloState
from tests.kit.paths import ROOT
from tests.kit.server import world as sw
from tests.kit.server.server_runs import settled, start, until
from tests.kit.server.store_samples import enrol

NOW = 1_800_000_000.0


@pytest.fixture
def world(tmp_path):
    """Four silos that joined; three open a round."""
    with sw.World(tmp_path) as made:
        enrol(made.store, made.silos, last_seen_unix_s=NOW)
        yield made


def without_two(store):
    store.silos.revoke("silo-001")
    store.silos.suspend("silo-002", suspended=True)


def test_a_run_that_revoked_silos_leave_below_its_quorum_is_not_started(world):
    without_two(world.store)
    with pytest.raises(RosterError) as refused:
        asyncio.run(world.run(sw.plan_toml()))
    assert "opens with 3 ready silos but only 2 of 4 may take part" in str(refused.value)
    assert "(silo-001 is revoked, silo-002 is suspended)" in str(refused.value)
    assert "reinstate who is suspended, or publish another roster" in str(refused.value)
    assert world.store.runs.list() == ()


def test_silence_is_as_long_as_in_the_alert():
    rule = (ROOT / "deploy/prometheus/rules/coordinator.yml").read_text()
    alert = rule[re.search("- alert: .*SiloSilent\n", rule).start() :]
    alert = alert[: alert.index("for: ")]
    assert re.findall(r"\) > ([0-9]+)", alert) == [f"{SILENT_S:.0f}"] * 2


@pytest.mark.parametrize(
    ("state", "last_seen_unix_s", "silent"),
    [
        (SiloState.ROSTERED, NOW - SILENT_S, False),
        (SiloState.ROSTERED, NOW - SILENT_S - 1, True),
        (SiloState.ROSTERED, 0.0, True),
        (SiloState.SITTING_OUT, 0.0, True),
        (SiloState.REVOKED, 0.0, False),
    ],
)
def test_who_is_silent(state, last_seen_unix_s, silent):
    member = Member(silo_id="a", state=state, last_seen_unix_s=last_seen_unix_s)
    assert is_silent(member, NOW) is silent


def test_with_just_the_quorum_it_is_started(world):
    world.store.silos.leave("silo-001")
    world.context.liveness.bar("silo-001", barred=True)
    run_id = asyncio.run(world.run(sw.plan_toml()))
    assert world.store.runs.get(run_id).state is RunState.FINISHED


def test_a_run_whose_silos_go_while_it_waits_is_turned_away_at_its_turn(world):
    """It would be driven without end, and hold up every run behind it."""

    async def two_runs():
        first = await start(world, "first", rounds=1)
        second = await start(world, "second", rounds=1)
        assert world.store.runs.get(second).state is RunState.QUEUED
        without_two(world.store)
        await until(lambda: world.store.runs.get(first).state is RunState.FINISHED)
        await settled(world)
        return second

    row = world.store.runs.get(asyncio.run(two_runs()))
    assert row.state is RunState.FAILED
    assert "only 2 of 4 may take part" in row.error


def test_silence_is_counted_against_those_who_may_take_part(world):
    def told(quorum):
        return silence(members_of(world.roster, world.store.silos.list()), quorum, NOW + 200)

    assert told(4) == ""
    world.store.silos.touch({"silo-002": NOW - 101, "silo-003": 0.0})
    assert told(2) == ""
    assert "only 2 were heard of within 5 minutes, not silo-002, silo-003" in told(3)
    # Who is revoked may call as it likes.
    world.store.silos.revoke("silo-001")
    assert "only 1 were heard of" in told(2)
