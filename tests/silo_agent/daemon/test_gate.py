"""The operator's word as a running daemon hears it: waiting, going on, stopping, leaving."""

from types import SimpleNamespace

import pytest

from federation.chain.record import Place
from federation.chain.task import APPROVAL_PENDING, PASSING_REASONS
from silo_agent.books.departure import Departure, Leaving
from silo_agent.books.heard_runs import HeardRuns
from silo_agent.daemon.audited import open_audit
from silo_agent.daemon.gate import Gate
from silo_agent.errors import LocalStoreError, PolicyRefusalError
from silo_agent.line.instruction import Idle, Instruction
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.approvals import Approvals, Word
from silo_agent.policy.document import Policy
from silo_agent.policy.policy import Decision
from tests.kit.secagg.secagg_samples import make_roster, signed_roster
from tests.kit.silo_agent.bench import Bench, counted
from tests.kit.silo_agent.session_round import ME
from tests.kit.silo_agent.step_tasks import PLAN, task

MANUAL = Policy.parse(b'[policy]\napproval = "manual"')
AUTO = Policy.parse(b"")


class Site(Bench):
    """A daemon whose policy allows everything but what the operator has to say."""

    def __init__(self, tmp_path, monkeypatch, policy=MANUAL):
        super().__init__(tmp_path)
        daemon = self.daemon
        daemon.gate = Gate(tmp_path, policy, daemon.metrics)
        daemon.identity = SimpleNamespace(silo_id=ME, signing_key=None)
        self.did = []
        record = SimpleNamespace()
        daemon.published = SimpleNamespace(
            head=None,
            coordinator_key=None,
            roster=lambda _sha256: signed_roster(make_roster()),
            plan=lambda _sha256: PLAN,
            follow=lambda _run, _plan: SimpleNamespace(record=record),
        )
        daemon.work = SimpleNamespace(
            site=SimpleNamespace(base_sha256=bytes(32), environments={}),
            start=lambda **_: self.did.append("start"),
            call_off=lambda: None,
            close=lambda: None,
            fitting=SimpleNamespace(choice=lambda _plan: SimpleNamespace(unfit="", notes=())),
        )
        for name in (
            "gate.require_echoed",
            "gate.require_after_none",
            "gate.require_budget",
            "daemon.require_next",
        ):
            monkeypatch.setattr(f"silo_agent.daemon.{name}", lambda *_, **__: None)
        monkeypatch.setattr("silo_agent.daemon.gate.check_task", self.verdict)
        # No pause between polls: the tests count them.
        monkeypatch.setattr("silo_agent.daemon.polling.LEAST_POLL_S", 0.0)

    @staticmethod
    def verdict(_policy, *, standing, **_):
        """The real rules about the operator, all others being content."""
        from silo_agent.policy.policy import FIRST_WORD, LAST_WORD

        case = SimpleNamespace(standing=standing)
        for rule in (*FIRST_WORD, *LAST_WORD):
            if detail := rule.fires(case):
                return Decision(
                    accepted=False, rule=rule.name, public_reason=rule.public_reason, detail=detail
                )
        return Decision(accepted=True, rule="accepted", public_reason="", detail="")

    def ask(self, *rounds, between=()):
        """Say one task each; between two polls that bring nothing, do what ``between`` says."""
        said = [
            Instruction(instruction_id=f"t{number}", identity=None, payload=task(number))
            for number in rounds
        ]
        return self.poll([*said, *between])

    def poll(self, said):
        from tests.kit.silo_agent.bench import Polls

        class Acting(Polls):
            def poll(self, last_id, *, wait_s):
                found = super().poll(last_id, wait_s=wait_s)
                if callable(found):
                    found()
                    return None
                return found

        self.daemon.stopping.clear()
        self.daemon.coordinator = Acting(self.one.wire, self.daemon.stopping, said)
        self.daemon.serve()
        return self.daemon.coordinator

    def say(self, *, approved, plan=bytes(32)):
        word = Word(run_id="run-1", plan_sha256=plan, approved=approved, by="ada", at_unix_s=1)
        Approvals(self.directory).say(word)


@pytest.fixture
def site(tmp_path, monkeypatch):
    made = []

    def make(policy=MANUAL):
        one = Site(tmp_path, monkeypatch, policy)
        made.append(one)
        return one

    yield make
    for one in made:
        one.one.ledger.close()


def test_without_an_approval_the_silo_refuses_in_passing_words_and_does_not_work(site):
    one = site()
    coordinator = one.ask(0)
    assert [said["reason"] for said in coordinator.refused] == [APPROVAL_PENDING]
    assert APPROVAL_PENDING in PASSING_REASONS
    assert one.did == []
    assert counted(one, "policy_decisions", decision="refuse", rule="approval_pending") == 1
    (run,) = HeardRuns(one.directory).all()
    assert (run.run_id, run.rule) == ("run-1", "approval_pending")


def test_an_approval_lets_the_waiting_task_begin_without_another_word_from_outside(site):
    one = site()
    coordinator = one.ask(0, between=[lambda: None, lambda: one.say(approved=True), lambda: None])
    assert len(coordinator.refused) == 1
    assert one.did == ["start"]
    assert HeardRuns(one.directory).get("run-1").rule == "accepted"


def test_the_machine_is_looked_at_only_for_a_plan_that_is_not_refused(site):
    """That loads the learning framework: seconds in which others explore for a run that is over."""
    one = site()
    looked = []

    def choice(_plan):
        looked.append(HeardRuns(one.directory).get("run-1").rule)
        return SimpleNamespace(unfit="", notes=("on one CPU",))

    one.daemon.work.fitting.choice = choice
    one.say(approved=False)
    one.ask(0)
    assert (looked, one.did) == ([], [])
    one.say(approved=True)
    one.ask(1)
    assert (len(looked), one.did) == (1, ["start"])
    assert HeardRuns(one.directory).get("run-1").hardware == ("on one CPU",)


def test_when_nothing_is_asked_for_any_more_the_work_hears_of_it(site):
    one = site()
    one.daemon.work.call_off = lambda: one.did.append("call off")
    one.say(approved=True)
    one.ask(0, between=[Instruction(instruction_id="i", identity=None, payload=Idle())])
    assert one.did == ["start", "call off"]


def test_an_approval_of_another_plan_changes_nothing(site):
    one = site()
    one.ask(0, between=[lambda: one.say(approved=True, plan=bytes([9]) * 32), lambda: None])
    assert one.did == []


def test_a_refusal_ends_the_waiting_with_a_final_word(site):
    one = site()
    coordinator = one.ask(0, between=[lambda: one.say(approved=False), lambda: None])
    first, second = (said["reason"] for said in coordinator.refused)
    assert first == APPROVAL_PENDING
    assert second not in PASSING_REASONS
    assert one.did == []


def test_an_instruction_that_came_meanwhile_ends_the_waiting(site):
    one = site()
    idle = Instruction(instruction_id="i", identity=None, payload=Idle())
    one.poll(
        [
            Instruction(instruction_id="t", identity=None, payload=task(0)),
            idle,
            lambda: one.say(approved=True),
            lambda: None,
        ]
    )
    assert one.did == []
    # The next task finds the approval.
    one.ask(1)
    assert one.did == ["start"]


def test_a_run_that_was_under_way_can_be_refused_and_only_under_its_name(site):
    one = site(AUTO)
    one.ask(0)
    assert one.did == ["start"]
    one.say(approved=False)
    one.ask(1)
    assert one.did == ["start"]
    assert counted(one, "policy_decisions", decision="refuse", rule="refused_by_operator") == 1


def test_a_damaged_file_of_approvals_lets_nothing_begin(site):
    one = site(AUTO)
    (one.directory / "approvals.jsonl").write_bytes(b"{}\n")
    with pytest.raises(LocalStoreError):
        one.daemon.gate.standing("run-1", bytes(32))
    instruction = Instruction(instruction_id="t", identity=None, payload=task(0))
    one.poll([instruction, instruction])
    assert one.did == []
    # Once for each time it is asked; the daemon goes on.
    assert counted(one, "errors", kind="LocalStoreError") == 2


def test_a_silo_that_leaves_refuses_and_its_daemon_ends(site):
    one = site(AUTO)
    Departure(one.directory).set(Leaving(drain=False, by="ada", at_unix_s=1))
    coordinator = one.ask(0, 0, 0)
    assert [said["reason"] for said in coordinator.refused] == ["this silo leaves the federation"]
    assert one.did == []
    assert coordinator._said, "it asked no further"


def test_draining_finishes_the_attempt_that_is_open_and_then_ends(site):
    one = site(AUTO)
    message = one.one.bundles()
    one.daemon._session = one.one.session
    Departure(one.directory).set(Leaving(drain=True, by="ada", at_unix_s=1))
    assert not one.daemon.gate.over(attempt_open=True)
    one.serve(message)
    # The loop ended because nothing more was said, not because the silo left.
    assert one.daemon._session is not None
    assert "share_keys" in one.sent()
    one.daemon._session = None
    coordinator = one.poll([lambda: None, lambda: None, lambda: None])
    assert len(coordinator._said) == 2


def test_without_drain_the_daemon_ends_at_once(site):
    one = site(AUTO)
    one.one.bundles()
    one.daemon._session = one.one.session
    Departure(one.directory).set(Leaving(drain=False, by="ada", at_unix_s=1))
    coordinator = one.poll([lambda: None, lambda: None, lambda: None])
    assert len(coordinator._said) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"drain": true, "by": "x"}'])
def test_a_mark_that_cannot_be_read_counts_as_one(tmp_path, content):
    departure = Departure(tmp_path)
    assert departure.mark() is None
    (tmp_path / "leaving.json").write_bytes(content)
    assert departure.mark() is not None
    departure.clear()
    departure.clear()
    assert departure.mark() is None


def test_a_refusal_is_told_where_the_list_of_runs_cannot_be_written(tmp_path, monkeypatch):
    """The coordinator would wait for this silo to the round's deadline."""

    def full(*_, **__):
        raise LocalStoreError("no space left on device")

    monkeypatch.setattr(HeardRuns, "judged", full)
    metrics, told = SiloMetrics(), []
    refusal = PolicyRefusalError(rule="epsilon_cap", public_reason="budget", detail="too much")
    with pytest.raises(LocalStoreError, match="no space"):
        Gate(tmp_path, AUTO, metrics).refuse(
            refusal,
            ("run-1", Place(2, 0)),
            audit=open_audit(tmp_path, lambda: None, metrics),
            coordinator=SimpleNamespace(refuse=lambda **said: told.append(said["reason"])),
        )
    assert told == ["budget"]
