"""kill -9 of the coordinator at chosen instants of a round, with real silos over mTLS.

No failure: a pause. A failure: a sum that is not exact, a second attempt where the first could go
on, a silo that leaves or is dropped, a round released twice.
"""

import numpy as np
import pytest

from evolution.methods.constant import constant_pattern
from federation.adapter.encoding import encode_adapter
from tests.kit.processes import constant_federation as cf
from tests.kit.processes.deaths_run import run_through_deaths

INSTANTS = (
    "training:0",
    "advertise_keys:2",
    "share_keys:3",
    "masked_input:1",
    "fold:2",
    "consistency_check:2",
    "unmask:4",
    "aggregate:0",
)
WIDE = 375_000
"""3,000,000 coordinates: twelve chunks."""


def require_untouched(loopback, rounds, resumed):
    """Every round is one attempt of everybody, and every silo is the process it was."""
    for figures in rounds:
        assert figures["outcome"] == "aggregated", figures
        assert tuple(figures["survivors"]) == cf.SILOS
        assert int(figures["attempt"]) == 1
    log = loopback.log("coordinator")
    assert log.count("attempt_resumed") == resumed, log
    assert log.count("round_finished") == len(rounds)
    for silo_id in cf.SILOS:
        assert loopback.alive(silo_id)
        for word in ("round_aborted", "not_in_this_aggregation", "instruction_failed"):
            assert word not in loopback.log(silo_id), loopback.log(silo_id)


@pytest.mark.long
def test_a_round_survives_the_death_of_its_coordinator_in_every_phase(tmp_path):
    with cf.federation(tmp_path) as loopback:
        deaths = [f"{number}:{instant}" for number, instant in enumerate(INSTANTS, 1)]
        plan, adapter = cf.write_run(
            loopback, cf.plan_toml(rounds=len(deaths), phase_deadline_s=20)
        )
        last, rounds = run_through_deaths(loopback, deaths, plan, adapter)
        # A coordinator that died in training signs the task again: no attempt was open.
        require_untouched(loopback, rounds, resumed=len(deaths) - 1)
        total = sum(cf.fixed_point(cf.VALUES[silo_id]) for silo_id in cf.SILOS)
        mean = total.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(cf.SILOS))
        expected = cf.flat(cf.initial_tensors())
        for _ in rounds:
            expected = (expected.astype(np.float64) + mean).astype(np.float32)
        result = cf.flat(cf.published(loopback, last["run"]["adapter_sha256"]))
        np.testing.assert_array_equal(result, expected)
        cf.await_adopted(loopback, last["run"]["adapter_sha256"])
        scratch = loopback.data_dir / "scratch"
        assert not [path for path in scratch.rglob("*") if path.is_file()]


@pytest.mark.long
def test_an_upload_resumes_at_its_offset_after_the_coordinators_death(tmp_path):
    tensors = {
        "base_model.model.layers.0.proj.lora_A.weight": np.ones((cf.RANK, WIDE), np.float32),
        "base_model.model.layers.0.proj.lora_B.weight": np.zeros((WIDE, cf.RANK), np.float32),
    }
    with cf.federation(tmp_path) as loopback:
        for number, silo_id in enumerate(cf.SILOS):
            cf.configure(loopback, silo_id, value=2.0 ** -(number + 8))
        plan, adapter = cf.write_run(loopback, cf.plan_toml(phase_deadline_s=30))
        adapter.write_bytes(encode_adapter(tensors))
        last, rounds = run_through_deaths(loopback, ["1:half_upload"], plan, adapter)
        require_untouched(loopback, rounds, resumed=1)
        # Counted only for a stream that begins where a spool of the process before ended.
        assert loopback.metrics("coordinator")["chorale_upload_resumes_total"] >= 1
        result = cf.flat(cf.published(loopback, last["run"]["adapter_sha256"]))
        start = cf.flat(tensors)
        assert result.size == 2 * cf.RANK * WIDE
        patterns = [
            constant_pattern(2.0 ** -(k + 8), start.size).astype(np.float64)
            for k in range(len(cf.SILOS))
        ]
        total = sum(np.rint(p * (cf.GRID / cf.CLIP)).astype(np.int64) for p in patterns)
        mean = total.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(cf.SILOS))
        expected = (start.astype(np.float64) + mean).astype(np.float32)
        np.testing.assert_array_equal(result, expected)
