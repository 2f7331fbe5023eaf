"""An enrolled silo that is not in the run's roster must not be able to stop the run."""

from contextlib import suppress

from silo_agent.errors import SiloError
from silo_agent.identity import Identity
from silo_agent.transport import Coordinator
from tests.integration.constant_federation import (
    SILOS,
    federation,
    plan_toml,
    watch_to_end,
    write_run,
)


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
