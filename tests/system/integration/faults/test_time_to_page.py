"""From a fault to whoever is woken: real daemons, a real Prometheus, the rules as they are shipped.

Every fault is made at once, each in a federation of its own, and then the alerts are waited for.
The table that this prints with ``-s`` stands in docs/operations.md (``make time-to-page``).

Failures: an alert that comes late, or not; a probe or the doctor that says another thing; a page
where a standby took over.
"""

import contextlib
import datetime as dt
import json
import os
import re
import shutil
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from deploy.prometheus_server import Prometheus
from server.pki.authority import certificate_sha256, not_after_unix_s
from server.pki.trust import Trust
from server.store import Store
from tests.kit.processes import constant_federation as cf
from tests.kit.processes import standby
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="making a small file system needs root"),
]
RULES = Path("deploy/prometheus/rules").resolve()
LATE_S = 90.0
"""Two scrapes and two evaluations of 15 s, and as much for machines that are busy."""
QUIET_S = 200.0
"""Longer than ChoraleCoordinatorDown holds."""


@dataclass
class Fault:
    """One federation, and what is to come of its fault."""

    name: str
    alert: str
    """Empty where nobody is to be woken."""
    after_s: float
    """What the plan's deadline and the rule's ``for`` take."""
    livez: int
    readyz: int
    doctor: str
    """Of what it finds."""
    federation: cf.LoopbackFederation = None
    took_s: float | None = None
    seen: dict = field(default_factory=dict)

    @property
    def instance(self):
        return f"127.0.0.1:{self.federation.probes_port}"


HALF = Fault("half of the silos dead", "ChoraleRoundStalled", 120, 200, 200, "")
FULL = Fault("disk full", "ChoraleStorageFailing", 300, 200, 503, "its disk is full")
LOCKED = Fault("database locked", "ChoraleStorageFailing", 300, 200, 200, "is busy")
GONE = Fault("database gone", "ChoraleStorageFailing", 300, 200, 503, "cannot be used")
DEAD = Fault("coordinator dead, with a standby", "", 0, 200, 200, "")
EXPIRED = Fault(
    "certificate of a silo expired",
    "ChoraleSiloCertificateExpiring",
    300,
    200,
    200,
    "certificate ended",
)
FAULTS = (HALF, FULL, LOCKED, GONE, DEAD, EXPIRED)


@pytest.fixture
def faults(tmp_path, postgresql):
    with contextlib.ExitStack() as stack:
        full = tmp_path / "full" / "coordinator"
        full.mkdir(parents=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=700m,mode=700", "tmpfs", full], check=True
        )
        stack.callback(subprocess.run, ["umount", "--lazy", full], check=True)
        url = postgresql.url(postgresql.database())
        for fault, directory, environment in (
            (HALF, "half", {}),
            (FULL, "full", {}),
            (LOCKED, "locked", {}),
            (GONE, "gone", {"CHORALE_COORDINATOR_DATABASE_URL": url}),
            (DEAD, "dead", {}),
            (EXPIRED, "expired", {}),
        ):
            fault.federation = stack.enter_context(
                cf.federation(tmp_path / directory, environment=environment)
            )
        yield FAULTS


def scraped(directory):
    """Prometheus as operators have it: the rules and the intervals that are shipped."""
    targets = [fault.instance for fault in FAULTS]
    silo = (EXPIRED.federation.silo_dir("silo-a") / "probes.address").read_text().strip()
    jobs = (("chorale-coordinator", targets), ("chorale-silo", [silo]))
    config = {
        "global": {"scrape_interval": "15s", "scrape_timeout": "10s", "evaluation_interval": "15s"},
        "rule_files": [f"{RULES}/*.yml"],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": chosen}]} for job, chosen in jobs
        ],
    }
    path = directory / "prometheus.yml"
    path.write_text(json.dumps(config))
    return path, silo


def expire(federation, silo_id):
    """A silo that was away for so long that its certificate ended."""
    identity = federation.silo_dir(silo_id) / "identity"
    old = x509.load_pem_x509_certificate((identity / "leaf.pem").read_bytes())
    ca = Trust.load(federation.data_dir / "pki").issuing
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(old.serial_number)
        .not_valid_before(now - dt.timedelta(days=31))
        .not_valid_after(now - dt.timedelta(minutes=1))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    new = builder.sign(ca.key, hashes.SHA256())
    (identity / "leaf.pem").write_bytes(new.public_bytes(serialization.Encoding.PEM))
    store = Store(f"sqlite:///{federation.data_dir / 'coordinator.db'}")
    store.silos.renew(
        silo_id, certificate_sha256=certificate_sha256(new), expiry_unix_s=not_after_unix_s(new)
    )
    store.silos.use_next(silo_id, certificate_sha256(new))
    store.close()


def ask(fault, path):
    try:
        with urllib.request.urlopen(f"http://{fault.instance}{path}", timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0


def doctor(fault):
    """What fails, in its words; of the silo where the fault is the silo's."""
    federation = fault.federation
    if fault is EXPIRED:
        module, data = "silo_agent.cli.main", federation.silo_dir("silo-a")
    else:
        module, data = "server.cli.main", federation.data_dir
    done = subprocess.run(
        [*federation.python("x"), "-m", module, "doctor", "--data", data, "--format", "json"],
        capture_output=True, text=True, timeout=120, check=False, env=federation._environment(),
    )  # fmt: skip
    steps = json.loads(done.stdout)["data"]["steps"]
    return "; ".join(f"{s['found']} → {s['fix']}" for s in steps if s["outcome"] == "failed")


def test_who_is_woken_when(tmp_path, faults, postgresql):
    cf.let_cohorts_vary(HALF.federation)
    plan, adapter = cf.write_run(HALF.federation, cf.plan_toml(rounds=100, ready_after_s=5))
    for silo_id in cf.SILOS:
        HALF.federation.start_silo(silo_id)
    cf.await_heard(HALF.federation)
    HALF.federation.start_run(plan, adapter, token="half")
    standby.start(DEAD.federation)
    expire(EXPIRED.federation, "silo-a")
    EXPIRED.federation.start_silo("silo-a")
    address = EXPIRED.federation.silo_dir("silo-a") / "probes.address"
    until(address.exists, "the silo's probes", told=lambda: EXPIRED.federation.log("silo-a"))
    config, silo = scraped(tmp_path)
    with Prometheus(config, data_dir=tmp_path / "prometheus") as prometheus:
        began = time.monotonic()
        until(
            lambda: len(prometheus.query("up == 1")) == len(FAULTS) + 1,
            "everything is scraped",
            within_s=120,
        )
        rounds = 'chorale_rounds_total{outcome="aggregated"}'
        until(lambda: HALF.federation.metrics("coordinator")[rounds], "a round of four silos")
        make_faults(postgresql)
        broken = time.monotonic()
        # The certificate had ended before the first scrape.
        at = dict.fromkeys((f.name for f in FAULTS), broken) | {EXPIRED.name: began}
        took_over(DEAD)
        await_alerts(prometheus, at, silo)
        for fault in FAULTS:
            fault.seen = {
                "livez": ask(fault, "/livez"),
                "readyz": ask(fault, "/readyz"),
                "doctor": doctor(fault),
            }
        time.sleep(max(0.0, broken + QUIET_S - time.monotonic()))
        woken = prometheus.query(
            f'max_over_time(ALERTS{{instance="{DEAD.instance}",alertstate="firing",'
            f'alertname!="ChoraleWatchdog"}}[30m])'
        )
    print_table()
    assert woken == []
    for fault in FAULTS:
        assert (fault.seen["livez"], fault.seen["readyz"]) == (fault.livez, fault.readyz), fault
        assert fault.doctor in fault.seen["doctor"], fault
        assert not fault.alert or fault.took_s <= fault.after_s + LATE_S, fault


def make_faults(postgresql):
    for silo_id in cf.SILOS[:2]:
        HALF.federation.kill(silo_id)
    with contextlib.suppress(OSError):
        (FULL.federation.data_dir / "fill").write_bytes(bytes(800 << 20))
    lock = sqlite3.connect(LOCKED.federation.data_dir / "coordinator.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    LOCKED.seen = lock
    postgresql.stop()
    DEAD.federation.kill("coordinator")


def took_over(fault):
    began = time.monotonic()
    standby.promote(fault.federation)
    fault.took_s = time.monotonic() - began


def await_alerts(prometheus, at, silo):
    """Note when each alert first fires."""
    waiting = [fault for fault in FAULTS if fault.alert]
    give_up_at = time.monotonic() + max(f.after_s for f in waiting) + 2 * LATE_S
    while waiting and time.monotonic() < give_up_at:
        firing = {
            (one["labels"]["alertname"], one["labels"].get("instance"))
            for one in prometheus.ask("alerts")["alerts"]
            if one["state"] == "firing" and one["labels"]["severity"] == "critical"
        }
        now = time.monotonic()
        for fault in tuple(waiting):
            instance = silo if fault is EXPIRED else fault.instance
            if (fault.alert, instance) in firing:
                fault.took_s = now - at[fault.name]
                waiting.remove(fault)
        time.sleep(1)
    assert not waiting, [fault.name for fault in waiting]


def print_table():
    print("\n| fault | woken by | after | /livez, /readyz | doctor |\n|---|---|---|---|---|")
    for fault in FAULTS:
        alert = fault.alert or "nobody: the standby serves"
        said = re.sub(r"/\S+/", "", fault.seen["doctor"])[:160] or "all is well here"
        probes = f"{fault.seen['livez']}, {fault.seen['readyz']}"
        print(f"| {fault.name} | {alert} | {fault.took_s:.0f} s | {probes} | {said} |")
