"""Real processes: the CA is rotated and a silo is suspended in the middle of a run, live.

Success is an exact sum of everybody who may take part, every silo on a certificate of the new CA
without a restart, and a suspended silo that nobody waited for.
"""

import json
import time

import pytest
from cryptography import x509

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = pytest.mark.long

ROUNDS = 2


def leaf(loopback, silo_id):
    path = loopback.silo_dir(silo_id) / "identity" / "leaf.pem"
    return x509.load_pem_x509_certificate(path.read_bytes())


def renewed(loopback, silo_id):
    name = 'chorale_silo_certificate_renewals_total{outcome="renewed"}'
    return loopback.metrics(silo_id)[name]


def test_a_run_goes_on_through_a_rotation_and_a_suspension(tmp_path):
    with cf.federation(tmp_path) as loopback:
        data = str(loopback.data_dir)
        before = {silo_id: leaf(loopback, silo_id) for silo_id in cf.SILOS}
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        cf.await_heard(loopback)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=ROUNDS))
        run_id = loopback.start_run(plan, adapter, token="rotation")
        rotated = loopback.chorale("ca", "rotate", "--overlap", "1h", "--data", data)
        status, rounds = cf.watch_to_end(loopback, run_id)
        assert status["run"]["state"] == "finished"
        assert [sorted(one["survivors"]) for one in rounds] == [list(cf.SILOS)] * ROUNDS
        until(
            lambda: all(renewed(loopback, silo_id) == 1 for silo_id in cf.SILOS),
            "not every silo renewed",
        )
        shown = loopback.chorale("ca", "show", "--data", data)
        assert shown["issuing"]["sha256"] == rotated["ca_sha256"]
        assert shown["retiring"]["trusted_until_unix_s"] == rotated["overlap_until_unix_s"]
        for silo_id in cf.SILOS:
            assert leaf(loopback, silo_id).issuer != before[silo_id].issuer
            assert loopback.alive(silo_id)

        away = cf.SILOS[3]
        loopback.chorale("silo", "suspend", away, "--reason", "an audit", "--data", data)
        started = time.monotonic()
        run_id = loopback.start_run(plan, adapter, token="suspension")
        status, rounds = cf.watch_to_end(loopback, run_id)
        assert status["run"]["state"] == "finished"
        assert [sorted(one["survivors"]) for one in rounds] == [list(cf.SILOS[:3])] * ROUNDS
        # Each phase would have waited six seconds for it, and each task twenty.
        assert time.monotonic() - started < ROUNDS * 20
        states = loopback.chorale("silo", "list", "--data", data)["silos"]
        assert {one["silo_id"]: one["state"] for one in states}[away] == "suspended"

        events = [
            json.loads(line)["event"]
            for line in (loopback.data_dir / "audit.jsonl").read_text().splitlines()
        ]
        for event in ("ca_rotated", "silo_suspended"):
            assert events.count(event) == 1
        assert events.count("silo_certificate_renewed") == len(cf.SILOS)
