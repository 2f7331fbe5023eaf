"""The notes about runs: what was asked for survives, what is hostile stays within bounds."""

import hashlib

import pytest

from secagg.descriptor import SignedDescriptor, sign_descriptor
from silo_agent.books import heard_runs
from silo_agent.books.heard_runs import HeardRuns
from silo_agent.errors import LocalStoreError
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.silo_agent.policy_samples import PLAN, edited, make_descriptor, make_plan, make_task

TOML = PLAN.encode()
DIGEST = hashlib.sha256(TOML).digest()


def task(run="run-1", toml=TOML, **changes):
    return make_task(run_id=run, plan_sha256=hashlib.sha256(toml).digest(), **changes)


def never():
    raise AssertionError("it was fetched again")


def test_a_task_is_remembered_with_its_plan_and_fetched_once(tmp_path):
    heard = HeardRuns(tmp_path)
    heard.hear(task(), lambda: TOML)
    heard.hear(task(round=3), never)
    (run,) = HeardRuns(tmp_path).all()
    assert (run.run_id, run.round, run.plan_sha256) == ("run-1", 3, DIGEST.hex())
    assert heard.plan(run) == make_plan()
    assert heard.get("run-2") is None


def test_another_plan_under_the_same_run_replaces_the_first(tmp_path):
    heard = HeardRuns(tmp_path)
    heard.hear(task(), lambda: TOML)
    other = edited(PLAN, ("count = 5", "count = 6")).encode()
    heard.hear(task(toml=other), lambda: other)
    (run,) = heard.all()
    assert heard.plan(run).rounds.count == 6


def test_a_plan_that_is_not_the_one_asked_for_is_not_believed(tmp_path):
    heard = HeardRuns(tmp_path)
    heard.hear(task(), lambda: TOML)
    (run,) = heard.all()
    (plan,) = tmp_path.glob("runs/*/plan.toml")
    plan.write_text(edited(PLAN, ("count = 5", "count = 6")))
    with pytest.raises(LocalStoreError, match="not the plan"):
        heard.plan(run)


def test_verdicts_and_rounds_are_counted_once(tmp_path):
    heard = HeardRuns(tmp_path)
    heard.hear(task(), lambda: TOML)
    heard.judged("run-1", "clip", hardware=("it fits",))
    heard.judged("run-1", "epsilon_cap")
    heard.judged("run-2", "clip")
    descriptor = make_descriptor(make_plan())
    for _ in range(3):
        heard.took_part(descriptor.identity)
    (run,) = heard.all()
    assert (run.rule, run.hardware, run.rounds_taken_part) == ("epsilon_cap", ("it fits",), 1)


def test_a_descriptor_is_kept_for_its_own_plan_only(tmp_path):
    heard = HeardRuns(tmp_path)
    heard.hear(task(), lambda: TOML)
    (run,) = heard.all()
    assert heard.descriptor(run) is None
    mine = sign_descriptor(make_descriptor(make_plan(), plan_sha256=DIGEST), signing_key("x"))
    heard.describe(mine)
    assert heard.descriptor(run) == mine
    heard.describe(SignedDescriptor(descriptor=make_descriptor(make_plan()), signature=bytes(64)))
    assert heard.descriptor(run) is None
    (file,) = tmp_path.glob("runs/*/descriptor.pb")
    file.write_bytes(b"\xff" * 40)
    with pytest.raises(LocalStoreError, match="descriptor"):
        heard.descriptor(run)


def test_a_damaged_note_is_left_out_and_written_again(tmp_path):
    heard = HeardRuns(tmp_path)
    heard.hear(task(), lambda: TOML)
    (note,) = tmp_path.glob("runs/*/run.json")
    for damage in ("", "[" * 100_000, '{"format": 1}', note.read_text().replace("run-1", "../x y")):
        note.write_text(damage)
        assert heard.all() == ()
        assert heard.get("run-1") is None
    heard.hear(task(), lambda: TOML)
    assert [run.run_id for run in heard.all()] == ["run-1"]


def test_runs_that_a_coordinator_invents_displace_none_that_this_silo_did(tmp_path, monkeypatch):
    monkeypatch.setattr(heard_runs, "MAX_RUNS", 4)
    clock = iter(range(1000))
    monkeypatch.setattr(heard_runs.time, "time", lambda: float(next(clock)))
    heard = HeardRuns(tmp_path)
    heard.hear(task(), lambda: TOML)
    heard.took_part(make_descriptor(make_plan()).identity)
    for number in range(20):
        heard.hear(task(run=f"x/../../invented-{number}"), lambda: TOML)
    names = [run.run_id for run in heard.all()]
    assert len(names) == 4
    assert names[0] == "run-1"
    assert names[-1].endswith("invented-19")
    # A run id is no path.
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
