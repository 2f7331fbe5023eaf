"""A run goes back between two rounds, once for each request, whatever stops in between."""

import asyncio
import json

import numpy as np
import pytest

from chorale.v1 import admin_pb2
from federation.adapter.encoding import decode_adapter
from federation.chain.record import verify_chain
from secagg.suite import verification_key
from server.cli.watch import Panel, view
from server.conductor.rollback import request_rollback
from server.conductor.status import watch_response
from server.errors import RollbackError, SubmitTokenError, UnknownRunError
from server.figures import Phase, RoundFigures
from server.run.driver import RunDriver
from server.states import RunState
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY
from tests.kit.server import world as sw
from tests.kit.server.cuts import Cut
from tests.kit.server.server_runs import details, in_phase, settled, start

ALL = ("silo-000", "silo-001", "silo-002")


@pytest.fixture
def world(tmp_path, monkeypatch):
    async def at_once(work, *arguments, **named):
        return work(*arguments, **named)

    # Time here moves only when the coordinator waits; a thread would let it run while one is asked.
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    with sw.World(tmp_path, silos=3) as made:
        yield made


def ask(world, run_id, to_round, token="token"):
    return request_rollback(
        world.store,
        world.audit,
        run_id=run_id,
        to_round=to_round,
        submit_token=token,
        admin="ada",
        clock=world.clock,
    )


def ask_in(world, round_number, to_round, phase=Phase.TRAINING):
    """Ask once, while the coordinator waits in a phase of a round."""

    async def act():
        return ask(world, world.driver.row.run_id, to_round)

    return in_phase(world, phase, act, round_number=round_number)


def chain_of(world, run_id):
    records = world.store.records.list(run_id)
    sums = world.driver.plan.sums_per_round
    verify_chain(records, verification_key(COORDINATOR_KEY), sums_per_round=sums)
    return records


def adapter(world, record):
    return decode_adapter(world.context.blobs.get(record.adapter_sha256), max_bytes=1 << 20)


def require_rounds(world, record, rounds):
    """The adapter is what so many exact sums make of the initial one."""
    for name, expected in sw.expected_adapter(ALL, rounds).items():
        np.testing.assert_array_equal(adapter(world, record)[name], expected)


def kinds(records):
    return [record.kind for record in records]


@pytest.mark.parametrize(
    ("phase", "target"), [(Phase.TRAINING, 0), (Phase.MASKED_INPUT, 1), (Phase.UNMASK, 2)]
)
def test_a_run_goes_back_after_the_round_that_is_under_way(world, phase, target):
    asked = ask_in(world, 3, target, phase)
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=6)))
    assert asked[0].result().round is None
    records = chain_of(world, run_id)
    assert kinds(records)[3:] == ["aggregated", "rollback", "aggregated", "aggregated"]
    assert records[4].restored_round == target
    assert records[4].adapter_sha256 == records[target].adapter_sha256
    for number, rounds in enumerate((0, 1, 2, 3, target, target + 1, target + 2)):
        require_rounds(world, records[number], rounds)
    row = world.store.rollbacks.by_submit_token("token")
    assert (row.run_id, row.to_round, row.round) == (run_id, target, 4)
    # Nothing of it was asked of a silo, and no ledger knows of it.
    assert world.store.rounds.charged(run_id)[:2] == (5, 5)
    assert [r.identity.round for r in world.store.aggregations.list(run_id)] == [1, 2, 3, 5, 6]
    for silo in world.silos.values():
        assert silo.ledger.debits_of_run(run_id).releases == 5
    assert details(world, "rollback_asked") == [{"run": run_id, "to_round": target, "admin": "ada"}]
    finished = details(world, "round_finished")
    assert [(one["outcome"], one.get("restored_round")) for one in finished][2:5] == [
        ("aggregated", None), ("rollback", target), ("aggregated", None),
    ]  # fmt: skip
    assert world.value("chorale_rounds_total", outcome="rollback") == 1
    assert world.value("chorale_releases_total", outcome="rollback") == 1
    assert world.value("chorale_rounds_total", outcome="aggregated") == 5


def test_a_paused_run_goes_back_when_it_is_resumed_and_loses_no_round_more(world):
    async def scenario():
        run_id = await start(world, "a", rounds=4)
        in_phase(world, Phase.TRAINING, lambda: world.conductor.pause_run(run_id), round_number=3)
        await settled(world)
        assert world.store.runs.get(run_id).state is RunState.PAUSED
        with pytest.raises(RollbackError, match="is at the adapter of round 2: resume it"):
            ask(world, run_id, 2)
        assert ask(world, run_id, 1).round is None
        assert len(world.store.records.list(run_id)) == 3
        # It outlives a restart.
        world.store.close()
        world._boot()
        world.conductor.resume()
        await world.conductor.resume_run(run_id)
        await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    records = chain_of(world, run_id)
    assert kinds(records) == ["initial", "aggregated", "aggregated", "rollback", "aggregated"]
    require_rounds(world, records[-1], 2)


def test_the_last_round_is_given_for_a_rollback_only_if_the_run_is_paused_before_it(world):
    refused = []

    async def scenario():
        run_id = await start(world, "a", rounds=3)

        async def act():
            try:
                ask(world, run_id, 1)
            except RollbackError as error:
                refused.append(str(error))
            await world.conductor.pause_run(run_id)

        in_phase(world, Phase.SHARE_KEYS, act, round_number=3)
        await settled(world)
        assert ask(world, run_id, 1).round is None
        await world.conductor.resume_run(run_id)
        await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    assert f"chorale run pause {run_id}" in refused[0]
    records = chain_of(world, run_id)
    assert kinds(records) == ["initial", "aggregated", "aggregated", "rollback"]
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    require_rounds(world, records[-1], 1)


def test_one_token_is_one_rollback_and_what_has_no_place_is_refused(world):
    said = {}

    def refuse(name, *arguments, **named):
        try:
            ask(world, *arguments, **named)
        except (RollbackError, SubmitTokenError, UnknownRunError) as error:
            said[name] = error

    async def scenario():
        run_id = await start(world, "a", rounds=5)
        waiting = await start(world, "b")

        async def act():
            refuse("queued", waiting, 0)
            refuse("unknown", "nobody", 0)
            refuse("not yet", run_id, 2)
            refuse("never", run_id, 2**32 - 1)
            refuse("malformed", run_id, 1, token="a b")
            first = ask(world, run_id, 1)
            assert ask(world, run_id, 1) == first
            refuse("other request", run_id, 0)
            refuse("waits", run_id, 0, token="another")

        in_phase(world, Phase.TRAINING, act, round_number=2)
        await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    assert {name: type(error) for name, error in said.items()} == {
        "queued": RollbackError,
        "unknown": UnknownRunError,
        "not yet": RollbackError,
        "never": RollbackError,
        "malformed": SubmitTokenError,
        "other request": SubmitTokenError,
        "waits": RollbackError,
    }
    assert "chorale run pause" in str(said["queued"])
    assert "chorale adapter list" in str(said["not yet"])
    assert "chorale run watch" in str(said["waits"])
    # The token is remembered when the run is over; a new one is told what to do instead.
    assert ask(world, run_id, 1).round == 3
    with pytest.raises(RollbackError, match=r"adapter export .* --round 1 .* run start"):
        ask(world, run_id, 1, token="late")
    assert kinds(chain_of(world, run_id)).count("rollback") == 1
    assert len(details(world, "rollback_asked")) == 1


def test_a_run_may_go_back_more_than_once(world):
    async def scenario():
        run_id = await start(world, "a", rounds=6)
        asked = []

        def before_wait():
            current = world.driver.current
            for number, target in ((2, 1), (4, 3)):
                if current.round == number and number not in asked:
                    asked.append(number)
                    ask(world, run_id, target, token=f"t{number}")

        world.before_wait = before_wait
        await settled(world)
        return run_id

    records = chain_of(world, asyncio.run(scenario()))
    restored = [record.restored_round for record in records]
    assert restored == [None, None, None, 1, None, 3, None]
    # Round 3 was a rollback itself: to round 1.
    require_rounds(world, records[5], 1)
    require_rounds(world, records[6], 2)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_servers_moments_begin_again(world, restarted):
    def run(number):
        done = []

        def before_wait():
            current = world.driver.current
            if not done and current.round == 2:
                done.append(ask(world, world.driver.row.run_id, 0))
            if restarted and current.round == 5 and len(done) == 1:
                done.append(None)
                raise sw.PowerCut

        world.before_wait = before_wait
        plan = sw.plan_toml(rounds=number, optimiser="fedadam")
        return asyncio.run(world.run_over_power_cuts(plan, cuts=int(restarted)))

    records = chain_of(world, run(5))
    assert kinds(records)[1:] == ["aggregated", "aggregated", "rollback", *["aggregated"] * 2]
    # Rounds 4 and 5 are rounds 1 and 2 over again, moments and all.
    assert records[4].adapter_sha256 == records[1].adapter_sha256
    assert records[5].adapter_sha256 == records[2].adapter_sha256


def test_a_round_of_steps_goes_back_as_a_whole(world):
    ask_in(world, 2, 1, Phase.MASKED_INPUT)
    run_id = asyncio.run(world.run(sw.stepped_toml(rounds=4)))
    records = chain_of(world, run_id)
    back = records[7:10]
    assert [(r.kind, r.restored_round) for r in back] == [("rollback", 1)] * 3
    assert {r.adapter_sha256 for r in back} == {records[3].adapter_sha256}
    assert kinds(records[10:]) == ["aggregated"] * 3
    assert world.store.rollbacks.by_submit_token("token").round == 3
    assert world.value("chorale_rounds_total", outcome="rollback") == 1
    assert world.value("chorale_releases_total", outcome="rollback") == 3
    assert world.store.rounds.charged(run_id)[:2] == (9, 3)


class CutWithin(Cut):
    """Cuts the power at a commit of the request or of the rollback itself."""

    armed = False

    def point(self, name):
        if self.armed and "commit" in name:
            super().point(name)

    def within(self, call):
        def wrapped(*arguments, **named):
            self.armed = True
            try:
                return call(*arguments, **named)
            finally:
                self.armed = False

        return wrapped


def go_back_over_cuts(world, patch, at, plan):
    cut = CutWithin(patch, world, at)
    patch.setattr(RunDriver, "_roll_back", cut.within(RunDriver._roll_back))
    asking = cut.within(ask)

    def before_wait():
        if world.driver.next_place.round == 3:
            # An admin who got no answer asks again.
            asking(world, world.driver.row.run_id, 1)

    world.before_wait = before_wait
    return cut, asyncio.run(world.run_over_power_cuts(plan, cuts=int(at > 0)))


@pytest.mark.parametrize("steps", [0, pytest.param(2, marks=pytest.mark.long)])
def test_the_power_may_go_at_every_commit_of_a_rollback(tmp_path_factory, monkeypatch, steps):
    plan = sw.stepped_toml(rounds=4, steps=steps) if steps else sw.plan_toml(rounds=4)
    sums = steps or 1

    def once(at):
        with (
            sw.World(tmp_path_factory.mktemp("cut"), silos=3) as world,
            monkeypatch.context() as patch,
        ):
            cut, run_id = go_back_over_cuts(world, patch, at, plan)
            assert cut.count >= at
            assert world.store.runs.get(run_id).state is RunState.FINISHED
            records = chain_of(world, run_id)
            done = [r for r in records if r.kind == "rollback"]
            assert len(done) == sums
            assert {r.adapter_sha256 for r in done} == {records[sums].adapter_sha256}
            row = world.store.rollbacks.by_submit_token("token")
            assert row.round == done[0].round
            # The line is written before the commit that it stands for, and asked for again it is.
            assert len(details(world, "rollback_asked")) == 1 + (at == 1)
            return cut.seen, row.round

    seen, taken = once(0)
    # The request, and each record with all that is durable with it.
    assert seen == ["before commit", "after commit"] * (1 + sums)
    assert taken == 4
    # A restart in the round that is under way begins with the rollback: nothing of it was open.
    assert [once(at)[1] for at in range(1, len(seen) + 1)] == [4, 3, *[4] * (2 * sums)]


def test_a_watcher_is_told(world, capsys):
    statuses = []

    def before_wait():
        row = world.store.runs.get(world.driver.row.run_id)
        status = watch_response(row=row, driver=world.driver, finished=(), context=world.context)
        if status.HasField("rollback_to_round"):
            statuses.append(status)

    ask_in(world, 2, 0)
    first = world.before_wait

    def both():
        first()
        before_wait()

    world.before_wait = both
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=3)))
    assert {status.rollback_to_round for status in statuses} == {0}
    figures = [RoundFigures.from_json(r.figures_json) for r in world.store.rounds.finished(run_id)]
    assert [(f.outcome, f.restored_round) for f in figures][1:] == [
        ("aggregated", None), ("rollback", 0),
    ]  # fmt: skip
    row = world.store.runs.get(run_id)
    last = watch_response(row=row, driver=None, finished=figures, context=world.context)
    assert not last.HasField("rollback_to_round")
    with Panel(live=True) as panel:
        panel.show(statuses[0])
        panel.show(last)
    told = capsys.readouterr().err
    assert "to go back to the adapter of round 0" in told
    assert "round 3/3 rollback: back to the adapter of round 0; nothing was summed" in told
    assert not admin_pb2.RoundStatus(restored_round=None).HasField("restored_round")
    assert "go back to the adapter of round 0" in str(
        [str(part) for part in view(statuses[0], {}, 0.0).renderables]
    )
    assert json.loads(world.store.rounds.finished(run_id)[-1].figures_json)["restored_round"] == 0
