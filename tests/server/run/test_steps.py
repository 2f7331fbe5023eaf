"""Rounds of several releases, in one process: real protocol states, sessions, ledgers and store.

A silo that dies, lags or comes back is no failure here. A failure is: a sum that is not exactly
what its survivors put in, a record without its place, a second exploration in one round, and a
charge beyond the plan's.
"""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from chorale.v1 import round_pb2 as pb
from federation.chain.record import Place
from secagg.descriptor import SignedDescriptor
from secagg.errors import MalformedMessageError
from server import context
from server.conductor.status import watch_response
from server.errors import WrongRoundError
from server.figures import STEPS, Phase, RoundFigures
from server.members.peer import Peer, Role
from server.rpc import access
from server.rpc.rounds import RoundService
from server.states import RunState
from server.store.tasks import TaskRow
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.run_checks import require_chain
from tests.kit.server.step_checks import places, require_sums, tasks

NAMES = silo_names(4)
STEPPED = sw.stepped_toml(rounds=2)


def descriptors(silo):
    told = [told.descriptor for told in silo.told if isinstance(told, SignedDescriptor)]
    return [(d.identity.round, d.identity.step, d.identity.attempt) for d in told]


def test_rounds_of_three_steps_to_the_end_of_the_run(world):
    run_id = asyncio.run(world.run(STEPPED))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    records = require_sums(world, run_id)
    assert places(records) == [(0, 0), *((r, s) for r in (1, 2) for s in range(3))]
    assert {record.kind for record in records[1:]} == {"aggregated"}
    # Every adapter is another one: each release moved it.
    assert len({record.adapter_sha256 for record in records}) == 7
    for silo in world.silos.values():
        # One exploration a round, and no word between its releases.
        assert tasks(silo) == [(1, 0), (2, 0)]
        assert descriptors(silo) == [(r, s, 1) for r in (1, 2) for s in range(3)]
        assert silo.aborted == 0
        newest = silo.ledger.highest_identity(run_id)
        assert (newest.round, newest.step, newest.attempt) == (2, 2, 1)
    assert world.store.rounds.charged(run_id)[:2] == (6, 2)
    assert world.value("chorale_rounds_total", outcome="aggregated") == 2
    assert world.value("chorale_releases_total", outcome="aggregated") == 6
    assert (world.value("chorale_round"), world.value("chorale_round_step")) == (2, 2)


def test_the_figures_of_each_step_stand_by_themselves(world):
    run_id = asyncio.run(world.run(STEPPED))
    figures = [RoundFigures.from_json(r.figures_json) for r in world.store.rounds.finished(run_id)]
    assert [(f.round, f.step) for f in figures] == [(r, s) for r in (1, 2) for s in range(3)]
    for figure in figures:
        waited = {Phase.TRAINING.value} if figure.step == 0 else set()
        assert set(figure.timings_s) == {*waited, *STEPS, Phase.AGGREGATE.value}
        assert figure.upload_bytes == 4 * (sw.DIMENSION + 3) * 4
        # Only the first step's metrics block carries figures.
        assert set(figure.success) == ({"constant"} if figure.step == 0 else set())
    finished = [json.loads(x) for x in world.audit.tail(99) if '"round_finished"' in x]
    assert [(e["details"]["round"], e["details"]["step"]) for e in finished] == [
        (f.round, f.step) for f in figures
    ]
    row = world.store.runs.get(run_id)
    status = watch_response(
        row=row, driver=world.driver, finished=world.driver.finished, context=world.context
    )
    assert (status.run.round, status.run.step, status.run.steps) == (2, 2, 3)
    assert [done.step for done in status.finished] == [0, 1, 2, 0, 1, 2]
    assert status.epsilon_unit == "task"
    # Every silo's own ledger says the same ε as the coordinator shows.
    for silo in world.silos.values():
        assert silo.ledger.spent_epsilons()["task"] == pytest.approx(status.epsilon_spent)


@pytest.mark.parametrize("die_at", ["advertise_keys", "share_keys", "upload"])
def test_a_silo_that_is_lost_in_the_middle_of_a_round_is_back_in_the_next(world, die_at):
    gone = world.silos[NAMES[3]]
    gone.die_at = (die_at, 1, 1)

    def before_wait():
        if gone.dead and world.driver.current.round == 2:
            gone.come_back()

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(STEPPED))
    records = require_sums(world, run_id)
    assert [record.survivors for record in records[1:]] == [
        NAMES,
        NAMES[:3],
        NAMES[:3],
        *[NAMES] * 3,
    ]
    (row,) = [r for r in world.store.aggregations.list(run_id) if r.identity.step == 2][:1]
    # Nobody waits for it in the next step: it is not in the cohort.
    assert row.descriptor.descriptor.cohort == NAMES[:3]
    assert tasks(world.silos[NAMES[0]]) == [(1, 0), (2, 0)]


def test_an_attempt_that_loses_too_many_is_followed_by_a_task_for_the_same_step(world):
    for name in NAMES[2:]:
        world.silos[name].die_at = ("upload", 1, 1)

    def before_wait():
        if "attempt_aborted" in world.events():
            for name in NAMES[2:]:
                if world.silos[name].dead:
                    world.silos[name].come_back()

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(STEPPED))
    records = require_sums(world, run_id)
    assert [record.kind for record in records[1:]] == ["aggregated"] * 6
    # Everybody is asked again, and the second attempt is of the same step.
    assert tasks(world.silos[NAMES[0]]) == [(1, 0), (1, 1), (2, 0)]
    attempts = [r.identity for r in world.store.aggregations.list(run_id) if r.identity.round == 1]
    assert [(i.step, i.attempt) for i in attempts] == [(0, 1), (1, 1), (1, 2), (2, 1)]
    # After the retry the next step follows at once again, and each attempt is charged.
    assert world.store.rounds.charged(run_id)[:2] == (7, 2)
    silo = world.silos[NAMES[0]]
    first, second = (silo.encoded[identity] for identity in attempts[1:3])
    assert not np.array_equal(first, second)


def test_a_later_step_invites_nobody_whom_an_earlier_one_of_the_round_did_not(world):
    """A silo left the roster in step 1 and is back in step 2, whose first attempt fails."""
    world.silos[NAMES[2]].die_at = ("upload", 1, 2)
    world.silos[NAMES[1]].die_at = ("upload", 1, 2)

    def before_wait():
        run_id, sent = world.driver.row.run_id, world.store.tasks
        if world.driver.current.step == 2 and len(sent.of_round(run_id, 1)) == 1:
            (row,) = sent.of_round(run_id, 1)
            fewer = replace(row.task, step=1, invited=NAMES[:3])
            sent.put(TaskRow(task=fewer, attempt=1))
        if "attempt_aborted" in world.events():
            for name in NAMES[1:3]:
                if world.silos[name].dead:
                    world.silos[name].come_back()

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.stepped_toml(rounds=1)))
    invited = {row.task.step: row.task.invited for row in world.store.tasks.of_round(run_id, 1)}
    assert invited == {0: NAMES, 1: NAMES[:3], 2: NAMES[:3]}


def test_with_too_few_left_the_next_step_begins_with_a_task(world, monkeypatch):
    """The quorum is all four, and one of them has been silent for too long."""
    monkeypatch.setattr(context, "SILENT_AFTER_S", 5.0)
    gone = world.silos[NAMES[3]]
    gone.die_at = ("unmask", 1, 0)

    def before_wait():
        if gone.dead and world.driver.training is not None:
            gone.come_back()

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.stepped_toml(rounds=1, quorum=4)))
    records = require_sums(world, run_id)
    assert [record.survivors for record in records[1:]] == [NAMES] * 3
    assert tasks(world.silos[NAMES[0]]) == [(1, 0), (1, 1)]
    assert {r.identity.attempt for r in world.store.aggregations.list(run_id)} == {1}


def test_a_skipped_step_keeps_the_adapter_and_the_round_goes_on(world, monkeypatch):
    monkeypatch.setattr(context, "SILENT_AFTER_S", 5.0)
    for name in NAMES[2:]:
        world.silos[name].die_at = ("check_consistency", 1, 1)

    def before_wait():
        for name in NAMES[2:]:
            if world.silos[name].dead and world.driver.current.step == 2:
                world.silos[name].come_back()

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(STEPPED))
    records = require_sums(world, run_id)
    assert [record.kind for record in records[1:4]] == ["aggregated", "skipped", "aggregated"]
    assert records[2].adapter_sha256 == records[1].adapter_sha256
    assert [record.survivors for record in records[1:4]] == [NAMES, (), NAMES]
    assert tasks(world.silos[NAMES[0]]) == [(1, 0), (1, 2), (2, 0)]
    assert world.value("chorale_rounds_total", outcome="aggregated") == 2
    assert world.value("chorale_releases_total", outcome="skipped") == 1


def test_a_sum_that_is_not_applied_leaves_nothing_in_the_optimiser(world):
    """It came to be a move before it was found out; the next step must not build on it."""
    real = world.conductor.__class__._load

    def load(conductor, run_id):
        driver = real(conductor, run_id)
        optimiser = driver._optimiser

        def ready_for(place, *, dimension):
            made = type(optimiser).ready_for(optimiser, place, dimension=dimension)
            if place == (1, 1):
                made.move(np.ones(dimension), round_number=1, step=1)
                raise_once.append(place)
            return made

        raise_once = []
        optimiser.ready_for = ready_for
        return driver

    world.conductor._load = lambda run_id: load(world.conductor, run_id)

    def before_wait():
        current = world.driver.current
        world.silos[NAMES[0]].poison = (
            np.full(sw.DIMENSION + 3, 2**26, dtype=np.uint32)
            if (current.round, current.step) == (1, 1)
            else None
        )

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(STEPPED))
    kinds = [record.kind for record in require_chain(world, run_id)]
    assert kinds[1:] == ["aggregated", "skipped", *["aggregated"] * 4]


def test_the_charged_releases_of_the_plan_are_never_exceeded(world):
    """Every attempt at step 1 loses two silos at upload; they come back for the next task."""

    def before_wait():
        current = world.driver.current
        for name in NAMES[2:]:
            silo = world.silos[name]
            if silo.dead and world.driver.training is not None:
                silo.come_back()
            if current.step == 1 and current.attempt:
                silo.die_at = ("upload", current.attempt, 1)

    world.before_wait = before_wait
    plan = sw.stepped_toml(rounds=2, spare=1)
    run_id = asyncio.run(world.run(plan))
    charged = world.store.rounds.charged(run_id)
    assert charged.releases == sw.parsed(plan).charged_releases == 7
    kinds = {places([r])[0]: r.kind for r in world.store.records.list(run_id)[1:]}
    assert {place for place, kind in kinds.items() if kind == "skipped"} == {(1, 1), (2, 1)}


def test_a_silo_asks_for_the_chain_from_a_position(world, monkeypatch):
    run_id = asyncio.run(world.run(STEPPED))
    service = RoundService(world.conductor)

    async def listed(position):
        access._PEER.set(Peer(role=Role.SILO, name=NAMES[0], certificate_sha256=b"x"))
        request = pb.ListRecordsRequest(run_id=run_id, from_position=position)
        answer = await service.ListRecords(request, None)
        return [(record.round, record.step) for record in answer.records]

    assert asyncio.run(listed(5)) == [(2, 1), (2, 2)]
    assert len(asyncio.run(listed(0))) == 7
    assert asyncio.run(listed(7)) == []
    # A page at a time, from any position.
    monkeypatch.setattr("federation.wire.RECORDS_PER_PAGE", 3)
    assert asyncio.run(listed(0)) == [(0, 0), (1, 0), (1, 1)]
    assert asyncio.run(listed(3)) == [(1, 2), (2, 0), (2, 1)]
    assert asyncio.run(listed(6)) == [(2, 2)]


def test_ready_for_a_step_is_ready_for_that_step_alone(world):
    seen = []

    async def scenario():
        run_id = await world.conductor.start_run(STEPPED, sw.INITIAL, "t")
        await asyncio.sleep(0)
        service, head = RoundService(world.conductor), world.driver.head.adapter_sha256
        access._PEER.set(Peer(role=Role.SILO, name=NAMES[0], certificate_sha256=b"x"))
        for step in (1, 0):
            request = pb.ReportReadyRequest(
                run_id=run_id, round=1, step=step, adapter_sha256=head, families=["constant"]
            )
            try:
                await service.ReportReady(request, None)
            except WrongRoundError as error:
                seen.append(type(error).__name__)
        ready = dict(world.driver.training.ready)
        refusal = pb.RefuseRequest(run_id=run_id, round=1, step=0, reason="busy\x1b[2J\n9 forged")
        with pytest.raises(MalformedMessageError, match="printable"):
            await service.Refuse(refusal, None)
        assert world.driver.training.refused == {}
        refusal.reason = "busy"
        await service.Refuse(refusal, None)
        assert world.driver.training.refused == {NAMES[0]: "busy"}
        await world.conductor.close()
        return ready

    assert asyncio.run(scenario()) == {NAMES[0]: ("constant",)}
    assert seen == ["WrongRoundError"]
    assert world.driver.next_place == Place(1, 0)
