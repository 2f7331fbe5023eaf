"""Sites that say yes, no and goodbye, as real processes of a real federation."""

import json

import pytest

from lab.loopback import LoopbackError
from tests.kit.processes.constant_federation import (
    configure,
    federation,
    plan_toml,
    policy_toml,
    watch_to_end,
    write_run,
)
from tests.kit.waiting import until

ASKED = ("silo-c", "silo-d")
"""Two of four: without them there is no quorum of three."""
MANUAL = '[policy]\napproval = "manual"\n'


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    with federation(tmp_path_factory.mktemp("gate")) as running:
        for silo_id in ASKED:
            configure(running, silo_id, policy=MANUAL + policy_toml())
        for silo_id in ("silo-a", "silo-b", *ASKED):
            running.start_silo(silo_id)
        yield running


def runs(loopback, silo_id):
    return loopback.silo("runs", "--data", str(loopback.silo_dir(silo_id)))["runs"]


def run_in_state(loopback, silo_id, state, run_id):
    return next(
        (run for run in runs(loopback, silo_id) if run["run"] == run_id and run["state"] == state),
        None,
    )


@pytest.mark.long
@pytest.mark.xdist_group("site_gate")
def test_a_run_waits_for_two_sites_begins_when_they_approve_and_not_where_one_refuses(loopback):
    plan, adapter = write_run(loopback, plan_toml(mode="silo", noise=1.0))
    run_id = loopback.start_run(plan, adapter, token="gate")
    for silo_id in ASKED:
        waits = until(
            lambda silo_id=silo_id: run_in_state(loopback, silo_id, "waiting for approval", run_id),
            f"{silo_id} waits for approval",
        )
        assert waits["epsilons_at_most"]["silo"]["epsilon"] > 0
        assert waits["epsilons_charged"] == {}
        key = 'chorale_silo_policy_decisions_total{decision="refuse",rule="approval_pending"}'
        until(lambda silo_id=silo_id, key=key: loopback.metrics(silo_id)[key], f"{silo_id} refuses")
    # Nothing was learned, charged or sent meanwhile.
    assert not (loopback.silo_dir("silo-c") / "rounds.jsonl").exists()

    data = str(loopback.silo_dir("silo-c"))
    shown = loopback.silo("preview", run_id, "--data", data)
    assert shown["charged_by_run"] == waits["epsilons_at_most"]
    assert shown["cohort"] == []

    loopback.silo("refuse", run_id, "--data", str(loopback.silo_dir("silo-d")))
    said_no = 'chorale_silo_policy_decisions_total{decision="refuse",rule="refused_by_operator"}'
    until(lambda: loopback.metrics("silo-d")[said_no], "silo-d refuses")
    loopback.silo("approve", run_id, "--plan-sha256", shown["plan_sha256"], "--data", data)
    status, rounds = watch_to_end(loopback, run_id)
    assert status["run"]["state"] == "finished", status
    assert len(rounds) == 1
    assert sorted(rounds[0]["survivors"]) == ["silo-a", "silo-b", "silo-c"]

    finished = until(
        lambda: run_in_state(loopback, "silo-c", "finished", run_id), "silo-c hears of the end"
    )
    assert finished["rounds_taken_part"] == 1
    assert finished["epsilons_charged"]["silo"]["epsilon"] > 0
    refused = run_in_state(loopback, "silo-d", "refused", run_id)
    assert refused["rule"] == "refused_by_operator"
    assert refused["epsilons_charged"] == {}
    after = loopback.silo("preview", run_id, "--data", data)
    assert after["cohort"] == ["silo-a", "silo-b", "silo-c"]
    assert after["dimension"] * 4 + 4 * len(after["metrics"]) == after["upload_bytes"]

    # What the coordinator was told is a fixed text: neither the operator nor the reason is in it.
    audit = loopback.chorale("audit", "tail", "--data", str(loopback.data_dir))
    reasons = {
        record["details"]["reason"]
        for record in audit["records"]
        if record["event"] == "silo_refused"
    }
    assert reasons == {
        "this silo's operator has not approved the run yet",
        "this silo's operator refused the run",
    }


@pytest.mark.xdist_group("site_gate")
def test_a_site_leaves_its_daemon_ends_and_the_coordinator_knows(loopback):
    directory = loopback.silo_dir("silo-d")
    until((directory / "privacy.ledger").exists, "silo-d has a ledger")
    done = loopback.silo(
        "leave", "--drain", "--revoke", "--wipe", "--yes", "--data", str(directory)
    )
    assert done["told"], done
    until(lambda: not loopback.alive("silo-d"), "silo-d ends")
    assert not (directory / "identity").exists()
    assert (directory / "privacy.ledger").exists()
    assert (directory / "audit.jsonl").exists()
    silos = loopback.chorale("silo", "list", "--data", str(loopback.data_dir))
    assert "silo-d" in json.dumps(silos)


@pytest.mark.xdist_group("site_gate")
def test_a_site_leaves_although_nobody_can_be_reached(loopback):
    directory = loopback.silo_dir("silo-c")
    loopback.kill("coordinator")
    with pytest.raises(LoopbackError, match="coordinator_not_told"):
        loopback.silo("leave", "--wipe", "--yes", "--data", str(directory))
    until(lambda: not loopback.alive("silo-c"), "silo-c ends")
    assert not (directory / "identity").exists()
    with pytest.raises(LoopbackError, match='"left"'):
        loopback.silo("run", "--data", str(directory))
