"""chorale-silo runs, approve, refuse, status and policy check, over a directory of real notes."""

import hashlib
import json

import pytest

from ops.cli.envelope import Exit
from silo_agent.books.audit import AuditLog
from silo_agent.books.heard_runs import HeardRuns
from silo_agent.books.local_store import ChainHead, LocalStore
from silo_agent.policy.approvals import Approvals, Standing
from tests.kit.silo_agent.command_line import call
from tests.kit.silo_agent.policy_samples import (
    NO_MODEL,
    PLAN,
    POLICY,
    edited,
    make_descriptor,
    make_plan,
    make_task,
)

TOML = edited(PLAN, NO_MODEL).encode()
DIGEST = hashlib.sha256(TOML).digest()
MANUAL = ("[models]", '[policy]\napproval = "manual"\n[models]')


@pytest.fixture
def silo(tmp_path):
    (tmp_path / "silo.toml").write_text('environments = ["craft", "maze"]')
    (tmp_path / "policy.toml").write_text(edited(POLICY, NO_MODEL, MANUAL))
    HeardRuns(tmp_path).hear(make_task(run_id="run-1", plan_sha256=DIGEST), lambda: TOML)
    HeardRuns(tmp_path).judged("run-1", "approval_pending")
    return tmp_path


@pytest.fixture
def ask(silo, monkeypatch, capsys):
    def asked(*arguments):
        code, out, err = call(
            monkeypatch, capsys, *arguments, "--data", str(silo), "--format", "json"
        )
        return code, json.loads(out), err

    return asked


@pytest.fixture
def shown(silo, monkeypatch, capsys):
    """What a command shows to people."""

    def printed(*arguments):
        code, out, _ = call(monkeypatch, capsys, *arguments, "--data", str(silo))
        assert code == Exit.OK
        return out

    return printed


def state(ask):
    (run,) = ask("runs")[1]["data"]["runs"]
    return run["state"], run["rule"]


def test_a_run_that_waits_is_shown_with_what_it_costs_and_what_to_do(ask, shown):
    code, said, _ = ask("runs")
    assert code == Exit.OK
    (run,) = said["data"]["runs"]
    assert (run["state"], run["round"], run["rounds"]) == ("waiting for approval", 2, 5)
    assert run["epsilons_at_most"]["silo"]["epsilon"] > 1.0
    assert run["epsilons_charged"] == {}
    lines = shown("runs")
    assert f"chorale-silo approve run-1 --plan-sha256 {DIGEST.hex()}" in lines
    assert f"at most {run['epsilons_at_most']['silo']['epsilon']:.4g} in all" in lines
    _, said, _ = ask("status")
    assert [one["run"] for one in said["data"]["waiting"]] == ["run-1"]
    assert "run run-1: waiting for approval" in shown("status")
    assert "approval: waited for by run-1: chorale-silo runs" in shown("status")


def approve(ask):
    return ask("approve", "run-1", "--plan-sha256", DIGEST.hex())


def test_approving_is_durable_audited_and_for_the_plan_that_was_shown(ask, silo):
    code, said, _ = approve(ask)
    assert code == Exit.OK
    assert said["data"]["plan_sha256"] == DIGEST.hex()
    assert Approvals(silo).standing("run-1", DIGEST, manual=True) is Standing.APPROVED
    (record,) = [json.loads(line) for line in AuditLog(silo).tail(1)]
    assert record["event"] == "approval_given"
    assert record["details"]["plan_sha256"] == DIGEST.hex()
    assert state(ask) == ("approved", "")
    HeardRuns(silo).judged("run-1", "accepted")
    assert state(ask) == ("taking part", "")


def test_an_approval_may_let_cohorts_vary_and_holds_for_that_plan_alone(ask, silo):
    approve(ask)
    assert not Approvals(silo).cohort_may_vary("run-1", DIGEST)
    code, said, _ = ask("approve", "run-1", "--plan-sha256", DIGEST.hex(), "--cohort-may-vary")
    assert (code, said["data"]["cohort_may_vary"]) == (Exit.OK, True)
    assert Approvals(silo).cohort_may_vary("run-1", DIGEST)
    assert not Approvals(silo).cohort_may_vary("run-1", bytes(32))
    assert not Approvals(silo).cohort_may_vary("run-2", DIGEST)
    (record,) = [json.loads(line) for line in AuditLog(silo).tail(1)]
    assert record["details"]["cohort_may_vary"] is True
    ask("refuse", "run-1")
    assert not Approvals(silo).cohort_may_vary("run-1", DIGEST)


def test_an_approval_for_another_plan_than_the_one_asked_for_is_refused(ask, silo):
    code, said, _ = ask("approve", "run-1", "--plan-sha256", "00" * 32)
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "another_plan")
    assert Approvals(silo).words() == ()


def hear_another_plan(silo):
    """What the daemon does when the coordinator's next task names another plan."""
    other = edited(PLAN, NO_MODEL, ("count = 5", "count = 4")).encode()
    digest = hashlib.sha256(other).digest()
    HeardRuns(silo).hear(make_task(run_id="run-1", plan_sha256=digest), lambda: other)
    HeardRuns(silo).judged("run-1", "approval_pending")
    return digest


def test_an_approval_that_names_no_plan_approves_nothing(ask, silo):
    code, said, _ = ask("approve", "run-1")
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "plan_not_named")
    assert Approvals(silo).words() == ()


def test_a_plan_that_was_switched_after_it_was_shown_is_not_approved(ask, shown, silo):
    (command,) = (line.split() for line in shown("runs").splitlines() if "silo approve" in line)
    digest = hear_another_plan(silo)
    code, said, _ = ask(*command[1:])
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "another_plan")
    assert Approvals(silo).standing("run-1", digest, manual=True) is Standing.PENDING
    assert AuditLog(silo).head_index == 0


def test_a_plan_that_cannot_be_read_is_not_approved(ask, silo):
    (path,) = silo.glob("runs/*/plan.toml")
    path.write_text("")
    code, said, _ = approve(ask)
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "plan_unreadable")
    assert Approvals(silo).words() == ()


def test_a_new_plan_under_the_same_run_waits_again(ask, silo):
    approve(ask)
    hear_another_plan(silo)
    assert state(ask) == ("waiting for approval", "")


def test_refusing_ends_a_run_that_was_under_way_and_approving_takes_it_back(ask, silo):
    approve(ask)
    HeardRuns(silo).judged("run-1", "accepted")
    HeardRuns(silo).took_part(make_descriptor(make_plan()).identity)
    code, _, err = ask("refuse", "run-1")
    assert code == Exit.OK
    assert f"to take it back: chorale-silo approve run-1 --plan-sha256 {DIGEST.hex()}" in err
    assert state(ask) == ("refused", "refused_by_operator")
    assert approve(ask)[0] == Exit.OK
    assert state(ask) == ("taking part", "")


def test_a_refusal_of_the_policy_is_named_and_an_approval_does_not_lift_it(ask, silo):
    HeardRuns(silo).judged("run-1", "clip")
    assert state(ask) == ("refused", "clip")
    _, _, err = approve(ask)
    assert "rule clip of the policy refused it, and still does" in err
    assert state(ask) == ("refused", "clip")


def test_a_finished_run_is_finished_whatever_was_said_since(ask, silo):
    from dp.ledger.ledger import Ledger

    Ledger.open(silo / "privacy.ledger", delta=1e-5, caps={}).close()
    head = ChainHead(round=5, step=0, position=5, adapter_sha256=bytes(32), record_sha256=bytes(32))
    LocalStore(silo).set_chain_head("run-1", head)
    assert state(ask) == ("finished", "")


@pytest.mark.parametrize("rule", ["accepted", "approval_pending", "not_invited"])
def test_a_run_that_is_over_is_not_taken_part_in_any_more(ask, shown, silo, rule):
    HeardRuns(silo).judged("run-1", rule)
    HeardRuns(silo).ended(["run-0", "run-1"])
    assert state(ask) == ("over", "")
    assert ask("status")[1]["data"]["waiting"] == []
    assert "approval: none is waited for" in shown("status")
    # It was restored from a backup, say, and asks again.
    HeardRuns(silo).hear(make_task(run_id="run-1", plan_sha256=DIGEST), lambda: TOML)
    assert state(ask)[0] != "over"


def test_what_was_refused_stays_so_when_it_is_over(ask, silo):
    HeardRuns(silo).judged("run-1", "clip")
    HeardRuns(silo).ended(["run-1"])
    assert state(ask) == ("refused", "clip")


def test_an_unknown_run_cannot_be_decided(ask):
    for command in ("approve", "refuse"):
        code, said, _ = ask(command, "run-9")
        assert (code, said["error_code"]) == (Exit.ARGUMENTS, "unknown_run")
    assert ask("preview", "run-9")[0] != Exit.OK


def test_a_damaged_audit_log_keeps_an_approval_back_and_not_a_refusal(ask, silo):
    (silo / "audit.jsonl").write_text("no record\n")
    code, said, _ = approve(ask)
    assert (code, Approvals(silo).words()) == (Exit.ARGUMENTS, ())
    code, said, err = ask("refuse", "run-1")
    assert code == Exit.OK
    assert "audit record 0 is unreadable" in said["data"]["not_audited"]
    assert "the audit log does not hold it" in err
    assert Approvals(silo).standing("run-1", DIGEST, manual=True) is Standing.REFUSED


def test_a_damaged_file_of_approvals_is_said_and_not_guessed(ask, shown, silo):
    (silo / "approvals.jsonl").write_text("{}\n")
    code, said, _ = ask("runs")
    assert code == Exit.ARGUMENTS
    assert "damaged at line 1" in said["message"]
    assert "problem:" in shown("status")


def test_the_offline_verdict_says_that_somebody_will_be_asked(ask, shown, silo):
    (silo / "plan.toml").write_bytes(TOML)
    code, said, _ = ask("policy", "check", str(silo / "plan.toml"))
    assert code == Exit.OK
    assert said["data"]["approval"] == "manual"
    assert "waits for `chorale-silo approve RUN`" in shown(
        "policy", "check", str(silo / "plan.toml")
    )


def test_the_offline_verdict_names_the_new_rules(ask, silo):
    (silo / "plan.toml").write_bytes(TOML)
    policy = edited(
        POLICY, NO_MODEL, ("max_rounds = 5", "max_rounds = 5\nmax_local_hours_per_round = 0.05")
    )
    (silo / "policy.toml").write_text(policy)
    code, said, _ = ask("policy", "check", str(silo / "plan.toml"))
    assert (code, said["data"]["rule"]) == (Exit.SERVER, "local_time")
