"""Real processes: a silo killed with its upload spooled finishes it when it is started again."""

import numpy as np
import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

LAST = cf.SILOS[3]


@pytest.mark.long
def test_a_restarted_silo_is_in_the_sum_and_back_in_the_next_round(tmp_path):
    with cf.federation(tmp_path) as loopback:
        for silo_id in cf.SILOS[:3]:
            loopback.start_silo(silo_id)
        loopback.environment = {"CHORALE_TEST_DIE_AT": "upload:1"}
        loopback.start_silo(LAST, module="tests.kit.processes.faulty_silo")
        loopback.environment = {}
        cf.await_heard(loopback)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=2, phase_deadline_s=15))
        run_id = loopback.start_run(plan, adapter, token="restart")
        until(lambda: not loopback.alive(LAST), "the silo dies")
        spools = loopback.silo_dir(LAST) / "spool"
        assert len(list(spools.iterdir())) == 1
        loopback.start_silo(LAST)
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        # It was lost for R3 and R4, and yet its vector is in the sum: R3 to R4 need only t silos.
        assert [tuple(r["survivors"]) for r in rounds] == [cf.SILOS, cf.SILOS]
        result = cf.flat(cf.published(loopback, last["run"]["adapter_sha256"]))
        total = sum(cf.fixed_point(cf.VALUES[silo_id]) for silo_id in cf.SILOS)
        mean = total.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(cf.SILOS))
        expected = cf.flat(cf.initial_tensors())
        for _ in range(2):
            expected = (expected.astype(np.float64) + mean).astype(np.float32)
        np.testing.assert_array_equal(result, expected)
        metrics = loopback.metrics(LAST)
        assert metrics["chorale_silo_resumed_uploads_total"] == 1
        assert metrics['chorale_silo_rounds_total{outcome="contributed"}'] == 1
        failed = [name for name in metrics if name.startswith("chorale_silo_failed_checks_total")]
        assert failed
        assert not any(metrics[name] for name in failed)
        assert "upload_finished" in loopback.log(LAST)
        # The last round's spool goes when the silo hears that the round is closed.
        until(lambda: not list(spools.iterdir()), "the spool goes")
