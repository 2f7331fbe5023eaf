"""What an admin and Prometheus are shown: ε, liveness, last calls, resumed uploads, the audit."""

import asyncio
import math

import pytest

from chorale.v1 import round_pb2 as pb
from dp.accounting.charge import training_charges
from dp.accounting.compose import epsilon_of
from federation.plan.charges import own_unit
from secagg import wire
from secagg.errors import MalformedMessageError
from server import daemon
from server.attempt.accumulator import Accumulator
from server.attempt.attempt import Attempt
from server.audit import AuditEvent, AuditLog
from server.conductor.status import run_summary, watch_response
from server.context import SILENT_AFTER_S, Liveness, Signal
from server.errors import ForeignMessageError, UploadError, WrongRoundError
from server.figures import Phase
from server.members.peer import Peer, Role
from server.metrics import CoordinatorMetrics
from server.rpc import access
from server.rpc.rounds import RoundService
from server.run.budget import shown_epsilon
from server.store.rounds import Charged
from tests.kit.server import world as sw
from tests.kit.server.memory_journal import MemoryJournal
from tests.kit.simulation.secagg_cohort import Cohort


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path) as made:
        yield made


# ε -----------------------------------------------------------------------------------------------


def test_epsilon_is_zero_then_grows_and_is_infinite_without_noise():
    noisy = sw.parsed(sw.plan_toml(mode="silo", noise=1.0))
    values = [shown_epsilon(noisy, Charged(count, count, count)) for count in range(4)]
    assert values[0] == 0
    assert values == sorted(set(values))
    # z joins delta and metrics: 1/z² = 1/1 + 1/1, and ε(δ=1e-5) of one such Gaussian is about 7.
    assert 5 < values[1] < 9
    bare = sw.parsed(sw.plan_toml())
    shown = [shown_epsilon(bare, Charged(count, count, count)) for count in range(2)]
    assert shown == [0.0, math.inf]


def test_epsilon_of_an_absurdly_small_noise_is_never_small():
    plan = sw.parsed(sw.plan_toml(mode="silo", noise=1e-6))
    assert shown_epsilon(plan, Charged(3, 3, 3)) > 1e9


def test_epsilon_is_shown_for_the_unit_that_the_mode_is_about():
    """Of several releases in a round only the first one's metrics block is charged."""
    plan = sw.parsed(sw.stepped_toml())
    assert own_unit(plan.spec) == "task"
    all_first, one_first = (shown_epsilon(plan, Charged(3, firsts, 3)) for firsts in (3, 1))
    assert 0 < one_first < all_first
    assert own_unit(sw.parsed(sw.plan_toml(mode="silo", noise=1.0)).spec) == "silo"


def test_a_training_is_shown_from_its_task_on_whether_or_not_an_upload_follows():
    plan = sw.parsed(sw.plan_toml(mode="record_local", noise=1.0, steps=3, delta_clip=4.0))
    spec = plan.spec
    trained = epsilon_of(training_charges(spec), spec.delta)["task"]
    assert shown_epsilon(plan, Charged(0, 0, 0)) == 0
    assert shown_epsilon(plan, Charged(0, 0, 1)) == pytest.approx(trained)
    # A second attempt sends the same delta again: it costs a metrics block and no training.
    once, again, retrained = (
        shown_epsilon(plan, Charged(attempts, attempts, rounds))
        for attempts, rounds in ((1, 1), (2, 1), (2, 2))
    )
    assert trained < once < again < retrained


# Status ------------------------------------------------------------------------------------------


def test_the_status_of_a_finished_run(world):
    run_id = asyncio.run(world.run(sw.plan_toml(mode="silo", noise=0.01)))
    row = world.store.runs.get(run_id)
    status = watch_response(
        row=row, driver=world.driver, finished=world.driver.finished, context=world.context
    )
    assert (status.run.state, status.run.round, status.run.rounds) == ("finished", 1, 1)
    assert status.run.adapter_sha256 == world.driver.head.adapter_sha256
    assert status.epsilon_spent == pytest.approx(world.value("chorale_dp_epsilon_spent"))
    assert (status.epsilon_cap, status.delta) == (1e9, 1e-5)
    (done,) = status.finished
    assert (done.outcome, done.phase, done.attempt) == ("aggregated", "finished", 1)
    assert [family.family for family in done.success] == ["constant"]
    assert {timing.phase for timing in done.timings} == {
        p.value for p in Phase if p is not Phase.FINISHED
    }
    summary = run_summary(row, world.driver.plan, head=None)
    assert (summary.name, summary.round, summary.step, summary.steps) == ("world", 0, 0, 1)
    assert status.epsilon_unit == "silo"


# Liveness ----------------------------------------------------------------------------------------


def test_everyone_has_a_while_to_show_up_and_then_to_call_again():
    clock = sw.Clock()
    liveness = Liveness(clock)
    assert liveness.alive("a")
    assert liveness.last_seen("a") == 0
    clock.now += SILENT_AFTER_S - 1
    liveness.touch("b")
    clock.now += 1
    assert not liveness.alive("a")
    assert liveness.alive("b")
    clock.now += SILENT_AFTER_S
    assert not liveness.alive("b")
    assert liveness.last_seen("b") == clock.now - SILENT_AFTER_S - 1


def test_a_signal_wakes_every_waiter_and_a_silent_one_times_out():
    async def scenario():
        signal, woken = Signal(), []

        async def wait(name):
            await signal.wait(2)
            woken.append(name)

        tasks = [asyncio.create_task(wait(name)) for name in "ab"]
        await asyncio.sleep(0)
        signal.notify()
        await asyncio.gather(*tasks)
        loop = asyncio.get_running_loop()
        started = loop.time()
        # What was notified before is not waited for again.
        await signal.wait(0.02)
        assert loop.time() - started >= 0.01
        await signal.wait(-1)
        return woken

    assert sorted(asyncio.run(scenario())) == ["a", "b"]


# The daemon's figures ----------------------------------------------------------------------------


def test_a_broken_audit_chain_is_counted_at_start_and_stops_nothing(tmp_path, capsys):
    path = tmp_path / "audit"
    audit = AuditLog(path)
    for _ in range(3):
        audit.append(AuditEvent.COORDINATOR_STARTED)
    metrics = CoordinatorMetrics()

    def failures():
        return metrics.registry.get_sample_value("chorale_audit_verify_failures_total")

    daemon._verify_audit(audit, metrics)
    assert failures() == 0
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"started", b"stopped") + lines[2])
    daemon._verify_audit(AuditLog(path), metrics)
    assert failures() == 1
    assert "audit record 1" in capsys.readouterr().out


# Uploads at the service --------------------------------------------------------------------------


@pytest.fixture
def upload(world, tmp_path):
    """A service whose attempt waits for the uploads of four silos, and one signed upload."""
    cohort = Cohort(4, dimension=300)
    deliveries = cohort.until("masked_input")
    attempt = Attempt(
        descriptor=cohort.descriptor,
        roster=cohort.roster,
        families={},
        accumulator=Accumulator(tmp_path / "sum", length=301),
        journal=MemoryJournal(),
    )
    attempt._state = cohort.server
    attempt.phase = Phase.MASKED_INPUT
    name = cohort.names[0]
    state, _ = cohort.states[name].handle(deliveries[name])
    vector = (cohort.plain(name) % 2**32).astype("<u4")
    _, header = state.mask(vector)
    service = RoundService(world.conductor)
    world.conductor.attempt = lambda: attempt
    return Uploading(service, attempt, name, header, vector.tobytes())


class Uploading:
    def __init__(self, service, attempt, name, header, content):
        self.service, self.attempt, self.name = service, attempt, name
        self.header, self.content = header, content

    def opening(self, offset):
        return pb.UploadMaskedInputRequest(
            opening=pb.UploadOpening(
                identity=wire.identity_to_proto(self.attempt.identity),
                header=wire.masked_input_header_to_proto(self.header),
                offset_bytes=offset,
            )
        )

    def chunks(self, start, stop=None, size=500):
        content = self.content[start:stop]
        return [
            pb.UploadMaskedInputRequest(chunk=pb.UploadChunk(content=content[i : i + size]))
            for i in range(0, len(content), size)
        ]

    def send(self, parts, caller=None):
        async def stream():
            for part in parts:
                yield part

        async def call():
            access._PEER.set(
                Peer(role=Role.SILO, name=caller or self.name, certificate_sha256=b"x")
            )
            return await self.service.UploadMaskedInput(stream(), None)

        return asyncio.run(call())

    def offset(self):
        async def call():
            access._PEER.set(Peer(role=Role.SILO, name=self.name, certificate_sha256=b"x"))
            request = pb.GetUploadOffsetRequest(
                identity=wire.identity_to_proto(self.attempt.identity)
            )
            return await self.service.GetUploadOffset(request, None)

        return asyncio.run(call()).offset_bytes


def test_a_cut_upload_resumes_at_its_offset_and_is_counted(upload, world):
    with pytest.raises(UploadError, match="resume"):
        upload.send([upload.opening(0), *upload.chunks(0, 700)])
    assert upload.offset() == 700
    assert world.value("chorale_upload_resumes_total") == 0
    answer = upload.send([upload.opening(700), *upload.chunks(700)])
    assert answer.received_bytes == len(upload.content) == upload.offset()
    assert world.value("chorale_upload_resumes_total") == 1
    assert upload.name not in upload.attempt.waiting_for
    assert world.context.liveness.last_seen(upload.name) == world.clock.now


def test_an_offset_that_is_not_the_spools_is_refused_and_not_counted(upload, world):
    with pytest.raises(UploadError, match="starts at byte 0"):
        upload.send([upload.opening(700), *upload.chunks(700)])
    assert world.value("chorale_upload_resumes_total") == 0


@pytest.mark.parametrize("parts", ["nothing", "chunk first", "two openings"])
def test_malformed_streams_are_refused(upload, parts):
    stream = {
        "nothing": [],
        "chunk first": upload.chunks(0),
        "two openings": [upload.opening(0), upload.opening(0)],
    }[parts]
    with pytest.raises(MalformedMessageError):
        upload.send(stream)


def test_an_upload_in_anothers_name_is_refused(upload):
    with pytest.raises(ForeignMessageError):
        upload.send([upload.opening(0)], caller="silo-002")


def test_an_upload_for_another_round_is_refused(upload):
    request = upload.opening(0)
    request.opening.identity.round += 1
    with pytest.raises(WrongRoundError):
        upload.send([request, *upload.chunks(0)])
