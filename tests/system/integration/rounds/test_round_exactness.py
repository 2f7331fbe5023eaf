"""Over real processes and mTLS: the published adapter is the average of the survivors, exactly."""

import numpy as np
import pytest

from tests.kit.processes import constant_federation as cf


@pytest.mark.parametrize(
    ("die_at", "survivors"),
    [
        pytest.param("", cf.SILOS, marks=pytest.mark.long),
        pytest.param("advertise_keys", cf.SILOS[:3], marks=pytest.mark.long),
        pytest.param("share_keys", cf.SILOS[:3], marks=pytest.mark.long),
        ("upload", cf.SILOS[:3]),
        pytest.param("check_consistency", cf.SILOS, marks=pytest.mark.long),
        pytest.param("unmask", cf.SILOS, marks=pytest.mark.long),
    ],
)
def test_sum_is_exact_whoever_drops_where(tmp_path, die_at, survivors):
    with cf.federation(tmp_path) as loopback:
        for silo_id in cf.SILOS[:3]:
            loopback.start_silo(silo_id)
        if die_at:
            loopback.environment = {"CHORALE_TEST_DIE_AT": f"{die_at}:1"}
        loopback.start_silo(cf.SILOS[3], module="tests.kit.processes.faulty_silo")
        cf.await_heard(loopback)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(phase_deadline_s=15))
        run_id = loopback.start_run(plan, adapter, token="exact")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert tuple(rounds[0]["survivors"]) == survivors
        assert loopback.alive(cf.SILOS[3]) is (not die_at)
        result = cf.flat(cf.published(loopback, last["run"]["adapter_sha256"]))
        start = cf.flat(cf.initial_tensors())
        # Bit for bit: the same fixed-point vectors, averaged in the open.
        total = sum(cf.fixed_point(cf.VALUES[silo_id]) for silo_id in survivors)
        mean = total.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(survivors))
        expected = (start.astype(np.float64) + mean).astype(np.float32)
        np.testing.assert_array_equal(result, expected)
        # And the float average to 1e-6 relative.
        floats = np.mean(
            [cf.constant_pattern(cf.VALUES[s], cf.DIMENSION).astype(np.float64) for s in survivors],
            axis=0,
        )
        moved = result.astype(np.float64) - start.astype(np.float64)
        assert np.linalg.norm(moved - floats) <= 1e-5 * np.linalg.norm(floats)
        error = np.linalg.norm(result - (start + floats)) / np.linalg.norm(start + floats)
        assert error < 1e-6
        # The silos that are alive adopted the same bytes, and the metrics came out of the sum.
        cf.await_adopted(loopback, last["run"]["adapter_sha256"], cf.SILOS[:3])
        family = rounds[0]["success"][0]
        successes = sum(8 * (1 + cf.SILOS.index(s)) for s in survivors)
        assert family["family"] == "constant"
        assert family["success_ratio"] == pytest.approx(successes / (64 * len(survivors)), abs=1e-3)


@pytest.mark.long
def test_rolora_with_gauge_and_noise_runs_and_every_silo_follows(tmp_path):
    with cf.federation(tmp_path) as loopback:
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        plan, adapter = cf.write_run(
            loopback,
            cf.plan_toml(rounds=3, mode="silo", noise=0.01, method="rolora", gauge=True),
        )
        run_id = loopback.start_run(plan, adapter, token="rolora")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert [r["outcome"] for r in rounds] == ["aggregated"] * 3
        assert float(last["epsilon_spent"]) > 1000
        cf.await_adopted(loopback, last["run"]["adapter_sha256"])
