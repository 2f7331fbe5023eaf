"""The daemon around a session: what it repeats, finishes, counts and logs, and that it goes on."""

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from secagg.descriptor import STEPS, AggregationId
from secagg.errors import Check
from secagg.messages import Survivors
from silo_agent.books.heard_runs import HeardRuns
from silo_agent.errors import LocalStoreError, SessionError, TransportError
from silo_agent.line.instruction import Idle, RoundAborted
from tests.kit.secagg.secagg_samples import signed_descriptor
from tests.kit.silo_agent.bench import Bench, counted, lines
from tests.kit.silo_agent.policy_samples import PLAN, make_task
from tests.kit.silo_agent.session_round import ME
from tests.kit.silo_agent.wiped import require_wiped

NAME = "run-1/4/0/0/1"


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.one.ledger.close()


# A coordinator that lies --------------------------------------------------------------------------


def test_a_failed_check_stops_the_silo_in_one_line_and_by_its_name(bench, capsys):
    survivors = bench.one.survivors()
    bench.daemon._session = bench.one.session
    mine_left_out = Survivors(headers=tuple(h for h in survivors.headers if h.silo_id != ME))
    capsys.readouterr()
    bench.serve(mine_left_out)
    (line,) = lines(capsys, "instruction_failed")
    for said in ("VerificationError", "check=survivors_self", NAME):
        assert said in line
    assert counted(bench, "failed_checks", check="survivors_self") == 1
    assert counted(bench, "errors", kind="VerificationError") == 1
    assert bench.daemon._session is None
    assert "check_consistency" not in bench.sent()
    assert not bench.one.ledger.has_agreed("run-1", 4, 0, 0)


def test_a_second_survivor_set_is_an_unexpected_message(bench, capsys):
    signatures = bench.one.signatures()
    bench.daemon._session = bench.one.session
    answered = bench.daemon._session._answers[Survivors].message
    other = Survivors(headers=answered.headers[:-1])
    bench.one.wire.sent.clear()
    bench.serve(answered, other, signatures)
    # The same again is answered, the other one ends it, and what would have led to shares does not.
    assert bench.sent() == ["check_consistency"]
    (line,) = lines(capsys, "instruction_failed")
    assert "check=unexpected_message" in line
    assert counted(bench, "failed_checks", check="unexpected_message") == 1


def test_a_forked_model_is_counted_under_its_check(bench, capsys):
    def forked(_signed):
        raise SessionError("another adapter than the chain's head", check=Check.MODEL)

    bench.daemon._open_session = forked
    bench.serve(bench.one.signed)
    (line,) = lines(capsys, "instruction_failed")
    assert "check=model" in line
    assert NAME in line
    assert counted(bench, "failed_checks", check="model") == 1


def test_after_a_lie_the_silo_takes_part_in_what_is_honest(bench):
    bundles = bench.one.bundles()
    bench.daemon._session = bench.one.session
    forged = replace(
        bundles, bundles=tuple(replace(b, signature=bytes(64)) for b in bundles.bundles[1:])
    )
    bench.serve(forged)
    assert bench.daemon._session is None
    later = replace(bench.one.descriptor.identity, attempt=2)
    bench.one.descriptor = replace(bench.one.descriptor, identity=later)
    bench.serve(signed_descriptor(bench.one.descriptor))
    assert bench.daemon._session.identity == later
    assert bench.sent() == ["advertise_keys", "advertise_keys"]
    bench.daemon._end_session()


def test_an_attempt_of_a_run_that_is_over_is_left_before_it_is_charged(bench):
    bundles = bench.one.bundles()
    bench.daemon._session = session = bench.one.session
    bench.daemon._hear_over(frozenset({"another"}))
    assert bench.daemon._session is session
    bench.daemon._hear_over(frozenset({bench.one.descriptor.identity.run_id}))
    require_wiped(session)
    bench.serve(bundles)
    assert "share_keys" not in bench.sent()


def test_a_run_that_is_over_is_noted_for_people_and_costs_no_instruction(bench, monkeypatch):
    heard = HeardRuns(bench.directory)
    for run_id in ("run-1", "run-2"):
        task = make_task(run_id=run_id, plan_sha256=hashlib.sha256(PLAN.encode()).digest())
        heard.hear(task, PLAN.encode)
    bench.daemon._hear_over(frozenset({"run-1", "another"}))
    assert [run.over for run in heard.all()] == [True, False]

    def full(*_arguments):
        raise LocalStoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("silo_agent.books.heard_runs.replace_file", full)
        bench.daemon._hear_over(frozenset({"run-1", "run-2"}))
    assert counted(bench, "errors", kind="LocalStoreError") == 1
    # The next word is the same one, and is not lost.
    bench.daemon._hear_over(frozenset({"run-1", "run-2"}))
    assert [run.over for run in heard.all()] == [True, True]


def test_the_phase_is_the_newest_answer_and_idle_when_there_is_nothing_to_do(bench):
    def phase():
        registry = bench.one.metrics.registry
        return [
            name
            for name in ("idle", "training", *STEPS)
            if registry.get_sample_value("chorale_silo_round_phase", {"phase": name})
        ]

    assert phase() == ["idle"]
    bundles = bench.one.bundles()
    bench.daemon._session = bench.one.session
    bench.serve(bundles)
    assert phase() == ["share_keys"]
    bench.serve(Idle())
    assert phase() == ["idle"]
    later = replace(bench.one.descriptor.identity, attempt=2)
    bench.one.descriptor = replace(bench.one.descriptor, identity=later)
    bench.serve(signed_descriptor(bench.one.descriptor))
    assert phase() == ["advertise_keys"]
    bench.serve(RoundAborted(reason="over"))
    assert phase() == ["idle"]


@pytest.mark.parametrize("error", [RecursionError, MemoryError, KeyError, AttributeError])
def test_a_defect_that_a_message_finds_ends_the_session_and_not_the_daemon(bench, capsys, error):
    """Its secrets are wiped, it is counted, and no line quotes what the error says."""
    survivors = bench.one.survivors()
    bench.daemon._session = session = bench.one.session

    def broken(*_head):
        raise error("a line of a prompt")

    bench.daemon.store.set_ledger_head = broken
    capsys.readouterr()
    bench.serve(survivors, Idle())
    out = capsys.readouterr().out
    assert sum("instruction_failed" in line for line in out.splitlines()) == 1
    assert f"kind={error.__name__}" in out
    assert counted(bench, "errors", kind="other") == 1
    assert bench.daemon._session is None
    require_wiped(session)
    assert bench.one.spools() == []
    # And the next round is joined as if nothing had been.
    bench.daemon.store.set_ledger_head = lambda *_head: None
    later = replace(bench.one.descriptor.identity, round=5)
    bench.one.descriptor = replace(bench.one.descriptor, identity=later)
    bench.serve(signed_descriptor(bench.one.descriptor))
    assert bench.daemon._session.identity == later
    bench.daemon._end_session()


# A coordinator that repeats itself ----------------------------------------------------------------


def test_a_restarted_coordinator_may_repeat_every_message(bench):
    signed = bench.one.signed
    bench.serve(signed)
    assert bench.remembered[-1] == bench.one.ledger.head()
    session = bench.daemon._session
    bench.one.open = lambda **_: session
    heard = []
    bench.one.heard = heard.append
    bench.one.finish()
    head = bench.one.ledger.head()
    first = list(bench.one.wire.sent)
    bench.one.wire.sent.clear()
    bench.serve(signed, *heard)
    assert bench.one.wire.sent == first
    assert bench.one.ledger.head() == head
    assert bench.daemon._session is session
    assert counted(bench, "errors", kind="SessionError") == 0


def test_the_contribution_is_counted_once(bench):
    signatures = bench.one.signatures()
    bench.daemon._session = bench.one.session
    bench.serve(signatures, signatures)
    assert bench.sent()[-2:] == ["unmask", "unmask"]
    assert counted(bench, "rounds", outcome="contributed") == 1


def test_another_descriptor_of_the_same_identity_gets_no_keys(bench, capsys):
    signed = bench.one.signed
    other = signed_descriptor(replace(signed.descriptor, deadlines_unix_s=(9, 10, 11, 12, 13)))
    bench.serve(signed, other, other, signed)
    assert bench.sent() == ["advertise_keys"]
    # The first refusal is the session's, the second the ledger's; the descriptor that was joined
    # is no lie, only late.
    assert len(lines(capsys, "check=identity")) == 2
    assert counted(bench, "failed_checks", check="identity") == 2
    assert bench.daemon._session is None


@pytest.mark.parametrize("refused", [False, True])
def test_a_poll_that_failed_does_not_end_the_attempt(bench, refused):
    delivery = bench.one.delivery()
    bench.daemon._session = session = bench.one.session
    asked = bench.serve(TransportError("no answer", refused=refused), delivery)
    assert bench.daemon._session is session
    assert bench.sent()[-1] == "upload"
    assert asked == ["", "", "1"]


# A silo that was restarted ------------------------------------------------------------------------


def restarted(bench, step):
    """The daemon after a kill: the ledger and the spool directory are all that is left."""
    message = step()
    if step == bench.one.survivors:
        bench.one.session.close(keep_spool=True)
    bench.daemon._session = None
    bench.daemon.unfinished = bench.found()
    bench.one.wire.sent.clear()
    return message


def test_a_restarted_silo_finishes_its_upload_and_counts_as_dropped(bench, capsys):
    survivors = restarted(bench, bench.one.survivors)
    first = bench.one.wire.uploaded.tobytes()
    delivery = bench.one.deliveries[ME]
    capsys.readouterr()
    bench.serve(bench.one.signed, delivery, survivors)
    assert bench.sent() == ["upload"]
    assert bench.one.wire.uploaded.tobytes() == first
    out = capsys.readouterr().out.splitlines()
    assert sum("upload_finished" in line for line in out) == 1
    assert sum("not_in_this_aggregation" in line for line in out) == 2
    assert not any("instruction_failed" in line for line in out)
    assert counted(bench, "resumed_uploads") == 1
    assert counted(bench, "failed_checks", check="identity") == 0
    assert not bench.one.ledger.has_agreed("run-1", 4, 0, 0)
    assert len(bench.one.spools()) == 1
    bench.serve(RoundAborted(reason="dropped"))
    assert bench.one.spools() == []


@pytest.mark.parametrize("end", ["idle", "aborted", "later descriptor", "other run"])
def test_the_spool_is_deleted_when_its_round_is_over(bench, end):
    restarted(bench, bench.one.survivors)
    identity = bench.one.descriptor.identity
    later = {
        "later descriptor": replace(identity, attempt=2),
        "other run": AggregationId(run_id="run-9", round=1, step=0, part=0, attempt=1),
    }.get(end)
    assert len(bench.one.spools()) == 1
    if later is None:
        bench.serve(Idle() if end == "idle" else RoundAborted(reason="over"))
    else:
        bench.one.descriptor = replace(bench.one.descriptor, identity=later)
        bench.serve(signed_descriptor(bench.one.descriptor))
        bench.daemon._end_session()
    assert bench.one.spools() == []


def test_a_failed_check_takes_the_spool_with_it(bench):
    survivors = bench.one.survivors()
    bench.daemon._session = bench.one.session
    assert len(bench.one.spools()) == 1
    bench.serve(replace(survivors, headers=survivors.headers[:1]))
    assert bench.one.spools() == []


def test_an_orderly_stop_keeps_the_spool_for_the_next_process(bench):
    bench.one.survivors()
    bench.daemon._session = bench.one.session
    closable = SimpleNamespace(close=lambda: None)
    bench.daemon.work = bench.daemon.coordinator = bench.daemon.preflights = closable
    bench.daemon.close()
    assert len(bench.one.spools()) == 1
    assert bench.daemon._session is None


def test_boxes_of_an_unknown_attempt_are_not_for_this_silo(bench, capsys):
    delivery = bench.one.delivery()
    bench.one.session.close()
    bench.one.wire.sent.clear()
    bench.serve(delivery)
    assert bench.sent() == []
    assert len(lines(capsys, "not_in_this_aggregation")) == 1
    assert counted(bench, "resumed_uploads") == 0
