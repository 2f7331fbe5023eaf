"""What one member can do to a run: nothing from outside its roster, and from inside end it."""

from contextlib import suppress

import pytest

from silo_agent.errors import SiloError
from silo_agent.identity.identity import Identity
from silo_agent.line.transport import Coordinator
from tests.kit.processes.constant_federation import (
    SILOS,
    await_heard,
    federation,
    plan_toml,
    watch_to_end,
    write_run,
)


@pytest.mark.long
def test_a_silo_outside_the_roster_cannot_stop_the_run(tmp_path):
    with federation(tmp_path) as loopback:
        loopback.enrol("silo-e")
        plan, adapter = write_run(loopback, plan_toml(rounds=3))
        identity = Identity.load(loopback.silo_dir("silo-e"))
        stranger = Coordinator(
            address=identity.coordinator_address,
            credentials=identity.channel_credentials(),
            patience_s=1.0,
        )
        # No silo runs yet, so the first round stays in training until the stranger has spoken.
        run_id = loopback.start_run(plan, adapter, token="hostile")
        record = stranger.records(run_id, 0)[0]
        # A typed refusal is the right answer.
        with suppress(SiloError):
            stranger.report_ready(
                run_id=run_id,
                round_number=1,
                step=0,
                adapter_sha256=record.adapter_sha256,
                families=("constant",),
            )
        stranger.close()
        for silo_id in SILOS:
            loopback.start_silo(silo_id)
        last, _ = watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last


@pytest.mark.long
def test_a_silo_that_spoils_every_sum_ends_the_run_after_two_of_them(tmp_path):
    """Random ring elements instead of its vector, in each round; the coordinator dies in between.

    Without an end four rounds would go through, all charged and none applied, to "finished".
    """
    with federation(tmp_path) as loopback:
        for silo_id in SILOS[:3]:
            loopback.start_silo(silo_id)
        loopback.environment = {"CHORALE_TEST_POISON": "1"}
        loopback.start_silo(SILOS[3], module="tests.kit.processes.faulty_silo")
        loopback.environment = {}
        await_heard(loopback)
        plan, adapter = write_run(
            loopback, plan_toml(rounds=4, mode="silo", noise=1.0, phase_deadline_s=30)
        )
        run_id = loopback.start_run(plan, adapter, token="spoiled")
        rounds, killed = [], False
        for status in loopback.watch(run_id):
            rounds += status.get("finished", [])
            if rounds and not killed:
                killed = True
                loopback.kill("coordinator")
                loopback.start_coordinator()
        assert [(done["round"], done["outcome"]) for done in rounds] == [
            (1, "quarantined"),
            (2, "quarantined"),
        ]
        assert status["run"]["state"] == "failed", status
        assert "2 sums in a row were not applied" in status["error"]
        assert not any(silo_id in status["error"] for silo_id in SILOS)
        # The adapter is the one that the run began with.
        data = ("--data", str(loopback.data_dir))
        listed = loopback.chorale("adapter", "list", run_id, *data)["records"]
        assert [one["kind"] for one in listed] == ["initial", "skipped", "skipped"], listed
        assert len({one["adapter_sha256"] for one in listed}) == 1
        for silo_id in SILOS[:3]:
            spent = loopback.metrics(silo_id)['chorale_silo_dp_epsilon_spent{unit="silo"}']
            assert spent == pytest.approx(status["epsilon_spent"])
            assert loopback.alive(silo_id)
