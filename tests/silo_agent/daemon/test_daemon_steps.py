"""The daemon in rounds of several releases: it follows, waits, refuses and stays alive."""

import threading
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dp.config import Mode
from dp.errors import TooManyUnitsError
from federation.chain.record import Place
from secagg import suite
from secagg.descriptor import AggregationId
from secagg.messages import KeyBundle
from silo_agent.books.heard_runs import HeardRuns
from silo_agent.daemon.gate import Gate
from silo_agent.errors import PolicyRefusalError
from silo_agent.follow.published import Published
from silo_agent.line.instruction import Instruction, LedgerEcho
from silo_agent.policy.document import Policy
from tests.kit.secagg.secagg_samples import (
    COORDINATOR_KEY,
    make_roster,
    signed_roster,
    signing_key,
)
from tests.kit.silo_agent.bench import Bench, Polls, counted, lines
from tests.kit.silo_agent.record_plans import STEPS
from tests.kit.silo_agent.session_round import ME
from tests.kit.silo_agent.step_tasks import PLAN, task
from tests.kit.silo_agent.unit_sums import UNITS, sum_of


class SteppedBench(Bench):
    """A daemon whose session waits for a sum of unit gradients."""

    def __init__(self, tmp_path):
        super().__init__(tmp_path, mode=Mode.RECORD_DISTRIBUTED, delta=Future())

    def tell(self, *instructions):
        self.daemon.stopping.clear()
        self.daemon.coordinator = Polls(self.one.wire, self.daemon.stopping, instructions)
        self.daemon.serve()
        return self.daemon.coordinator


@pytest.fixture
def bench(tmp_path):
    made = SteppedBench(tmp_path)
    yield made
    made.daemon._end_session()
    made.one.ledger.close()


def boxes(bench, instruction_id="7"):
    message = bench.one.delivery()
    bench.daemon._session = bench.one.session
    return Instruction(
        instruction_id=instruction_id, identity=bench.one.descriptor.identity, payload=message
    )


def test_a_silo_that_still_computes_goes_on_polling_and_then_uploads(bench, capsys):
    told = boxes(bench)
    threading.Timer(1.5, lambda: bench.one.delta.set_result(sum_of(UNITS))).start()
    coordinator = bench.tell(*[told] * 20)
    # The same instruction, asked for again until it was answered; no pause, no failure.
    before = coordinator.asked.index("7")
    assert before >= 1
    assert set(coordinator.asked[:before]) == {""}
    assert bench.sent().count("upload") == 1 + (20 - before)
    assert lines(capsys, "instruction_failed") == []
    assert counted(bench, "errors", kind="NotReadyError") == 0
    assert bench.one.ledger.has_spent(bench.one.identity())


def test_too_many_units_end_the_attempt_by_name_and_nothing_leaves(bench, capsys):
    told = boxes(bench)
    bench.one.delta.set_exception(TooManyUnitsError("21 units where 20 may be summed"))
    bench.tell(told)
    (line,) = lines(capsys, "instruction_failed")
    assert "TooManyUnitsError" in line
    assert counted(bench, "errors", kind="TooManyUnitsError") == 1
    assert bench.daemon._session is None
    assert "upload" not in bench.sent()
    assert not bench.one.ledger.has_spent(bench.one.identity())


# Tasks -------------------------------------------------------------------------------------------


def echo_of(seq, sha256):
    unsigned = KeyBundle(
        silo_id=ME, cipher_key=bytes(32), mask_key=bytes(32), ledger_seq=seq,
        ledger_sha256=sha256, families=(), signature=bytes(64),
    )  # fmt: skip
    signature = suite.sign(signing_key(ME), unsigned.signed_bytes(bytes(32)))
    bundle = replace(unsigned, signature=signature)
    identity = AggregationId(run_id="run-0", round=9, step=1, part=0, attempt=1)
    return LedgerEcho(identity=identity, bundle=bundle, descriptor_sha256=bytes(32))


@pytest.fixture
def asked(bench, monkeypatch):
    """What follows a task, as stand-ins that note what the daemon did."""
    did = []
    daemon = bench.daemon
    daemon.identity = SimpleNamespace(silo_id=ME, signing_key=signing_key(ME))
    allowed = Policy.parse(b"[limits]\nmax_attempts_per_day = 100")
    daemon.gate = Gate(bench.directory, allowed, daemon.metrics)
    record = daemon.record = SimpleNamespace(
        place=Place(2, 0), adapter_sha256=bytes(32), plan_sha256=bytes(32), run_id="run-1", suite=1
    )
    daemon.published = SimpleNamespace(
        head=None,
        coordinator_key=None,
        roster=lambda _sha256: signed_roster(make_roster()),
        plan=lambda _sha256: PLAN,
        follow=lambda _run, _plan: [did.append("follow"), SimpleNamespace(record=record)][1],
    )
    daemon.work = SimpleNamespace(
        site=SimpleNamespace(base_sha256=bytes(32), environments={}),
        start=lambda **_: did.append("start"),
        close=lambda: None,
        fitting=SimpleNamespace(choice=lambda _plan: SimpleNamespace(unfit="", notes=())),
    )
    verdict = SimpleNamespace(accepted=True, rule="accepted")
    for name in ("check_task", "check_followed"):
        monkeypatch.setattr(f"silo_agent.daemon.gate.{name}", lambda *_, **__: verdict)
    return did


def tell_task(bench, echo, step=1):
    return bench.tell(
        Instruction(instruction_id="t", identity=None, payload=task(step), ledger_echo=echo)
    )


def test_a_head_that_the_ledger_contains_lets_the_work_begin(bench, asked):
    tell_task(bench, echo_of(*bench.one.ledger.head()))
    tell_task(bench, None)
    assert asked == ["follow", "start"] * 2


def test_a_rolled_back_ledger_works_on_nothing_says_so_and_asks_again(bench, asked, capsys):
    for _ in range(2):
        coordinator = tell_task(bench, echo_of(5, bytes([5]) * 32))
        assert coordinator.refused == [
            {"run_id": "run-1", "round_number": 2, "step": 1, "reason": "ledger"}
        ]
        assert coordinator.asked == ["", "t"]
    assert asked == []
    assert counted(bench, "policy_decisions", decision="refuse", rule="ledger_rolled_back") == 2
    (line, _) = lines(capsys, "refused")
    assert "put the newest copy of privacy.ledger and state.json back" in line


def test_an_echo_that_this_silo_never_signed_is_a_failed_check(bench, asked, capsys):
    honest = echo_of(*bench.one.ledger.head())
    forged = replace(honest, bundle=replace(honest.bundle, ledger_seq=4))
    bench.tell(Instruction(instruction_id="t", identity=None, payload=task(), ledger_echo=forged))
    assert asked == []
    assert "check=ledger_head" in lines(capsys, "instruction_failed")[0]
    assert counted(bench, "failed_checks", check="ledger_head") == 1
    assert bench.daemon.coordinator.refused == []


def test_a_task_over_budget_is_refused_before_any_work(bench, asked, monkeypatch):
    def over(*_, **__):
        raise PolicyRefusalError(rule="epsilon_cap", public_reason="budget", detail="too much")

    monkeypatch.setattr("silo_agent.daemon.gate.require_budget", over)
    coordinator = tell_task(bench, None)
    assert coordinator.refused[0]["reason"] == "budget"
    assert asked == []


# The chain, inside a round -----------------------------------------------------------------------


def published_at(head):
    made = Published.__new__(Published)
    made.followed = []
    made.head = head and SimpleNamespace(record=SimpleNamespace(run_id="run-1", place=Place(*head)))
    made.follow = lambda run_id, plan_sha256: made.followed.append((run_id, plan_sha256))
    return made


def descriptor_of(run_id, number, step):
    identity = SimpleNamespace(run_id=run_id, round=number, step=step)
    return SimpleNamespace(identity=identity, plan_sha256=bytes(32))


@pytest.mark.parametrize(
    ("head", "asked_for", "follows"),
    [
        ((1, 1), (1, 2), False),
        ((1, 0), (1, 2), True),
        ((1, STEPS - 1), (2, 0), False),
        ((0, 0), (1, 1), True),
        (None, (1, 1), True),
        # A first step is never opened without a task, which has followed; an old one is not either.
        ((1, 0), (2, 0), False),
        ((2, 1), (1, 1), False),
    ],
)
def test_a_later_step_is_followed_to_before_it_is_joined(head, asked_for, follows):
    made = published_at(head)
    made.head_before(descriptor_of("run-1", *asked_for), PLAN)
    assert made.followed == ([("run-1", bytes(32))] if follows else [])


def test_another_runs_head_is_not_the_one_before():
    made = published_at((1, 1))
    made.head_before(descriptor_of("run-2", 1, 2), PLAN)
    assert made.followed == [("run-2", bytes(32))]


# Invited ------------------------------------------------------------------------------------------


@pytest.fixture
def hybrid(bench, asked):
    """The same daemon, in a run of suite v2."""
    bench.daemon.record.suite = 2
    return bench


def invited(*names, step=1):
    return replace(task(step), invited=names, signature=b"").sign(COORDINATOR_KEY)


def told_of(bench, asked_task):
    return bench.tell(Instruction(instruction_id="t", identity=None, payload=asked_task))


def test_a_silo_that_is_not_invited_waits_and_neither_works_nor_refuses(hybrid, asked):
    called_off = []
    hybrid.daemon.work.call_off = lambda: called_off.append(True)
    for _ in range(2):
        coordinator = told_of(hybrid, invited("silo-777", "silo-888"))
        assert coordinator.refused == []
    # It follows the run's chain as it does when a round closes.
    assert asked == ["follow"] * 2
    assert called_off
    (heard,) = HeardRuns(hybrid.directory).all()
    assert (heard.rule, heard.suite) == ("not_invited", 2)


def test_a_silo_that_is_invited_works_as_ever(hybrid, asked):
    told_of(hybrid, invited(ME, "silo-777"))
    assert asked == ["follow", "start"]


def test_a_round_that_is_asked_of_others_than_before_is_a_failed_check(hybrid, asked):
    told_of(hybrid, invited(ME, "silo-777"))
    told_of(hybrid, invited(ME, "silo-888"))
    assert asked == ["follow", "start", "follow"]
    assert counted(hybrid, "failed_checks", check="task") == 1


@pytest.mark.parametrize("names", [(ME, "silo-777"), ("silo-777", "silo-888")])
@pytest.mark.parametrize("step", [0, 2])
def test_a_task_of_another_step_than_the_next_is_not_remembered(hybrid, asked, names, step):
    """Junk steps would push the round's task out, and a descriptor could name one of them."""
    hybrid.daemon.work.call_off = lambda: None
    told_of(hybrid, invited(*names, step=step))
    assert "start" not in asked
    assert hybrid.daemon.tasks.named("run-1", 2, bytes(32)) is None


def test_a_task_that_the_site_refuses_is_not_remembered(hybrid, asked, monkeypatch):
    refused = SimpleNamespace(accepted=False, rule="clip", public_reason="no", detail="no")
    for name in ("check_task", "check_followed"):
        monkeypatch.setattr(f"silo_agent.daemon.gate.{name}", lambda *_, **__: refused)
    hybrid.daemon.work.call_off = lambda: None
    for names in ((ME, "silo-777"), ("silo-777", "silo-888")):
        told_of(hybrid, invited(*names))
    assert asked == []
    assert hybrid.daemon.tasks.named("run-1", 2, bytes(32)) is None
