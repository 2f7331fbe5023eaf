"""Two coordinators of one data directory, as processes: a second is refused, a standby takes over.

Not failures: a pause. Failures: two that serve; a round that begins again where it could go on; a
sum that is not exact.
"""

import numpy as np
import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.processes import standby
from tests.kit.processes.deaths_run import MODULE
from tests.kit.waiting import until


@pytest.fixture
def loopback(tmp_path):
    with cf.federation(tmp_path) as made:
        yield made


def dies(loopback, instant):
    """Whoever starts next kills itself there."""
    loopback.environment = {
        "CHORALE_TEST_DEATHS": instant,
        "CHORALE_TEST_DEATHS_DONE": str(loopback.directory / "deaths"),
    }


def test_a_second_is_refused_and_the_first_goes_on(loopback):
    pid, audit = loopback.pid("coordinator"), loopback.data_dir / "audit.jsonl"
    before = audit.read_bytes()
    loopback._start("second", "server.cli.coordinator", "serve", "--data", str(loopback.data_dir))
    second = loopback._processes.pop("second").popen
    assert second.wait(timeout=30) == 1
    said = loopback.log("second")
    assert f"pid {pid} " in said
    assert "--standby" in said
    assert loopback.alive("coordinator")
    assert audit.read_bytes() == before


@pytest.mark.long
def test_a_standby_takes_over_a_round_in_the_middle_of_its_upload(loopback):
    loopback.kill("coordinator")
    dies(loopback, "1:masked_input:1")
    loopback.start_coordinator(module=MODULE)
    dies(loopback, "2:fold:2")
    standby.start(loopback, module=MODULE)
    loopback.environment = {}
    plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=2, phase_deadline_s=30))
    for silo_id in cf.SILOS:
        loopback.start_silo(silo_id)
    cf.await_heard(loopback, cf.SILOS)
    run_id = loopback.start_run(plan, adapter, token="standby")
    for _ in range(2):
        until(lambda: not loopback.alive("coordinator"), "the coordinator dies")
        standby.promote(loopback)
        standby.start(loopback)
    last, rounds = cf.watch_to_end(loopback, run_id)
    assert last["run"]["state"] == "finished"
    for figures in rounds:
        assert figures["outcome"] == "aggregated"
        assert tuple(figures["survivors"]) == cf.SILOS
        assert int(figures["attempt"]) == 1
    total = sum(cf.fixed_point(cf.VALUES[silo_id]) for silo_id in cf.SILOS)
    mean = total.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(cf.SILOS))
    expected = cf.flat(cf.initial_tensors())
    for _ in rounds:
        expected = (expected.astype(np.float64) + mean).astype(np.float32)
    result = cf.flat(cf.published(loopback, last["run"]["adapter_sha256"]))
    np.testing.assert_array_equal(result, expected)
