"""Answers that do not get through: the place in the round is kept, and the same bytes go again.

The coordinator here repeats an instruction until it is asked with its id, as the real one does.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from federation.chain.record import Place
from federation.chain.task import RoundTask
from secagg.messages import Survivors
from silo_agent.attempt.spool import Spool
from silo_agent.errors import SpoolError, TransportError
from silo_agent.line.instruction import Idle, Instruction, RoundAborted, RoundClosed
from tests.kit.secagg.secagg_samples import signed_descriptor
from tests.kit.silo_agent.bench import Bench, counted, lines

ANSWERS = ["advertise_keys", "share_keys", "upload", "check_consistency", "unmask"]
LATE = TransportError("FAILED_PRECONDITION", reason="wrong_phase", refused=True)


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.daemon._end_session()
    made.one.ledger.close()


class Repeating:
    """A coordinator whose instruction stands until it is dealt with."""

    def __init__(self, bench, said):
        self._wire, self._stopping = bench.one.wire, bench.daemon.stopping
        self._said = [
            Instruction(
                instruction_id=str(number), identity=bench.one.descriptor.identity, payload=payload
            )
            for number, payload in enumerate(said)
        ]
        self.told = []

    def poll(self, last_id, *, wait_s):
        assert wait_s > 0
        if self._said and self._said[0].instruction_id == last_id:
            self._said.pop(0)
        if not self._said or len(self.told) > 20:
            self._stopping.set()
            return None
        self.told.append(self._said[0].instruction_id)
        return self._said[0]

    def refuse(self, **_said):
        pass

    def __getattr__(self, name):
        return getattr(self._wire, name)


def serve(bench, *said):
    bench.daemon.stopping.clear()
    bench.daemon.coordinator = Repeating(bench, said)
    bench.daemon.serve()
    return bench.daemon.coordinator.told


class Losing:
    """The wire, on which the first answer of each kind fails before or after it arrives."""

    def __init__(self, wire, name, error, *, arrives):
        self.tried = []
        self._left = 1
        real = wire._send

        def send(kind, message):
            if kind != name:
                real(kind, message)
                return
            self.tried.append(message)
            if self._left:
                self._left -= 1
                if arrives:
                    real(kind, message)
                raise error
            real(kind, message)

        wire._send = send


def play(bench):
    """The whole attempt through the daemon, peers and coordinator being real states."""
    told = []
    one = bench.one

    def opened(**_options):
        told.append(serve(bench, one.signed))
        return SimpleNamespace(handle=lambda message: told.append(serve(bench, message)))

    original = one.open
    bench.daemon._open_session = lambda _signed: original(advertise=False)
    one.open = opened
    decoded = one.finish()
    return told, decoded


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_did_not_get_through_is_given_again(bench, name, arrives):
    losing = Losing(bench.one.wire, name, TransportError("UNAVAILABLE"), arrives=arrives)
    told, decoded = play(bench)
    # Only the instruction whose answer failed was asked for again, and its answer is the same one.
    assert [len(ids) for ids in told] == [1 + (kind == name) for kind in ANSWERS]
    first, second = losing.tried
    assert first == second
    assert decoded.delta.any()
    assert bench.daemon._session.finished
    assert counted(bench, "rounds", outcome="contributed") == 1
    assert counted(bench, "errors", kind="TransportError") == 1
    # One record each: nothing was joined, charged or signed twice.
    assert bench.one.ledger.head()[0] == 3


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_was_refused_ends_the_session_and_is_not_given_again(bench, name):
    one = bench.one
    steps = {
        "share_keys": one.bundles,
        "upload": one.delivery,
        "check_consistency": one.survivors,
        "unmask": one.signatures,
    }
    message = one.signed
    if name in steps:
        message = steps[name]()
        bench.daemon._session = one.session
    losing = Losing(one.wire, name, LATE, arrives=False)
    assert serve(bench, message) == ["0"]
    assert len(losing.tried) == 1
    assert bench.daemon._session is None
    assert counted(bench, "errors", kind="TransportError") == 1


@pytest.mark.parametrize("refused", [False, True])
def test_a_refused_upload_takes_its_spool_with_it_and_a_lost_one_keeps_it(bench, refused):
    delivery = bench.one.delivery()
    bench.daemon._session = session = bench.one.session
    bench.one.wire.fails_at, bench.one.wire.refuses = "upload", refused
    told = serve(bench, delivery)
    assert (bench.daemon._session is session) is not refused
    assert len(bench.one.spools()) == (0 if refused else 1)
    assert len(told) == (1 if refused else 21)
    if not refused:
        # However long it takes: the coordinator is back, and the same vector goes up.
        bench.one.wire.fails_at = ""
        serve(bench, delivery)
        assert bench.sent().count("upload") == 1
        assert bench.daemon._session is session


def test_keys_that_never_arrived_are_sent_again_and_no_others(bench):
    bench.one.wire.fails_at = "advertise_keys"
    told = serve(bench, bench.one.signed)
    assert len(told) == 21
    assert bench.sent() == []
    assert bench.one.ledger.has_joined(bench.one.identity(), bench.one.descriptor.sha256)
    session = bench.daemon._session
    bench.one.wire.fails_at = ""
    other = replace(bench.one.descriptor, deadlines_unix_s=(9, 10, 11, 12, 13))
    serve(bench, bench.one.signed)
    assert bench.daemon._session is session
    assert bench.sent() == ["advertise_keys"]
    assert bench.one.ledger.head()[0] == 1
    serve(bench, signed_descriptor(other))
    assert bench.sent() == ["advertise_keys"]
    assert bench.daemon._session is None


def test_keys_that_arrived_unnoticed_are_not_asked_for_again(bench):
    """The coordinator goes on to R1: the rest of the attempt needs nothing of the lost answer."""
    one, original = bench.one, bench.one.open
    losing = Losing(one.wire, "advertise_keys", TransportError("UNAVAILABLE"), arrives=True)

    def opened():
        session = original(advertise=False)
        with pytest.raises(TransportError):
            session.handle(one.signed)
        return session

    one.open = opened
    assert one.finish().delta.any()
    assert len(losing.tried) == 1
    one.session.close()


# What ends a session may fail itself --------------------------------------------------------------


def immovable(monkeypatch):
    def delete(self):
        raise SpoolError(f"cannot delete the spool {self.path}: read-only file system")

    monkeypatch.setattr(Spool, "delete", delete)


def test_a_spool_that_cannot_be_deleted_does_not_end_the_daemon(bench, monkeypatch, capsys):
    survivors = bench.one.survivors()
    bench.daemon._session = bench.one.session
    immovable(monkeypatch)
    wrong = Survivors(headers=survivors.headers[:1])
    told = serve(bench, wrong, Idle())
    assert told == ["0", "1"]
    assert bench.daemon._session is None
    assert len(lines(capsys, "spool_not_deleted")) == 1
    assert counted(bench, "errors", kind="SpoolError") == 2


def test_a_refusal_survives_a_spool_that_cannot_be_deleted(bench, monkeypatch):
    bench.one.survivors()
    session = bench.daemon._session = bench.one.session
    immovable(monkeypatch)
    bench.daemon._refuse(SimpleNamespace(rule="rule", detail="detail", public_reason="policy"))
    assert bench.daemon._session is None
    assert session._contribution is None
    assert counted(bench, "errors", kind="SpoolError") == 1


# What brings nothing to do -----------------------------------------------------------------------


def obeyed(bench, payload, identity=None):
    bench.daemon.coordinator = bench.one.wire
    return bench.daemon._obey(Instruction(instruction_id="1", identity=identity, payload=payload))


def test_idle_and_aborted_are_nothing_to_do_and_a_descriptor_is_something(bench):
    assert obeyed(bench, Idle()) is False
    assert obeyed(bench, RoundAborted(reason="over")) is False
    assert obeyed(bench, bench.one.signed) is True


@pytest.mark.parametrize("step", ["bundles", "delivery", "survivors", "signatures"])
def test_a_step_is_something_to_do(bench, step):
    message = getattr(bench.one, step)()
    bench.daemon._session = bench.one.session
    assert obeyed(bench, message, bench.one.descriptor.identity) is True


def test_a_task_is_something_to_do_once(bench):
    taken = []

    def take(task, echo):
        assert echo is None
        taken.append(task)
        bench.daemon._task = task

    bench.daemon._take_task = take
    task = RoundTask(
        run_id="run-1",
        round=1,
        plan_sha256=bytes(32),
        roster_sha256=bytes(32),
        roster_epoch=1,
        base_model_sha256=bytes(32),
        adapter_sha256=bytes(32),
        ready_deadline_unix_s=1,
    )
    assert [obeyed(bench, task) for _ in range(2)] == [True, False]
    assert obeyed(bench, replace(task, round=2)) is True
    # Repeated or not, each is answered.
    assert len(taken) == 3


def test_a_closed_round_is_something_to_do_once(bench, monkeypatch):
    daemon = bench.daemon
    record = SimpleNamespace(plan_sha256=bytes(32), run_id="run-1", round=1, place=None)
    verdict = SimpleNamespace(accepted=True, rule="accepted")
    monkeypatch.setattr("silo_agent.daemon.gate.check_followed", lambda *_, **__: verdict)
    daemon.policy, daemon.work = None, SimpleNamespace(site=None, call_off=lambda: None)
    published = daemon.published = SimpleNamespace(
        head=None, coordinator_key=None, plan=lambda _sha256: None
    )

    def follow(_run_id, _plan_sha256):
        published.head = SimpleNamespace(record=record)
        return published.head

    published.follow = follow
    closed = RoundClosed(record=record)
    assert [obeyed(bench, closed) for _ in range(3)] == [True, False, False]
    verdict.accepted = False
    published.head = None
    assert obeyed(bench, closed) is False


# The round ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("run_id", "number"), [("run-1", 2), ("run-1", 4), ("run-9", 3)])
def test_a_descriptor_must_follow_the_adopted_head(bench, monkeypatch, capsys, run_id, number):
    descriptor, opened = bench.one.descriptor, []
    monkeypatch.setattr("silo_agent.daemon.daemon.Session", lambda **k: opened.append(k))
    del bench.daemon._open_session
    plan = SimpleNamespace(sums_per_round=1)
    bench.daemon.work = SimpleNamespace(finished=lambda *_: SimpleNamespace(plan=plan))
    head = SimpleNamespace(
        record=SimpleNamespace(
            run_id=run_id,
            place=Place(number, 0),
            adapter_sha256=descriptor.adapter_sha256,
            plan_sha256=descriptor.plan_sha256,
        )
    )
    bench.daemon.published = SimpleNamespace(
        roster=lambda _sha256: bench.one.roster, head_before=lambda _identity, _plan: head
    )
    assert descriptor.identity.round == 4
    serve(bench, bench.one.signed)
    assert opened == []
    assert len(lines(capsys, "check=identity")) == 1
    assert counted(bench, "failed_checks", check="identity") == 1
