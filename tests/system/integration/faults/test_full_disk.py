"""Disks that take no write, under real daemons: the data directory's, and the log's.

``RLIMIT_FSIZE`` of 0 is set on a running coordinator from outside: from then on each of its writes
to a file fails, log and database alike, as on a disk that both share. /dev/full fails each write to
a log. A small file system that is really full needs a mount, and so a namespace.

Failures are: a daemon that ends, a coordinator that calls itself ready, a run that nobody drives
when there is room again.
"""

import os
import resource
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

FULL_LOG = "tests.system.integration.faults.full_log"
UNLIMITED = resource.RLIM_INFINITY
ROUNDS = 'chorale_rounds_total{outcome="aggregated"}'
REFUSED = 'chorale_rejected_messages_total{reason="storage_full"}'


def readiness(loopback):
    url = f"http://127.0.0.1:{loopback.probes_port}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def await_metrics(loopback, what, true):
    def metrics():
        return loopback.metrics("coordinator")

    until(lambda: true(metrics()), what, told=metrics)


def limit_files(loopback, most_bytes):
    """Only the soft limit: who may lower it may raise it again."""
    limits = (most_bytes, UNLIMITED)
    resource.prlimit(loopback.pid("coordinator"), resource.RLIMIT_FSIZE, limits)


@pytest.mark.long
def test_a_run_outlasts_a_disk_that_takes_neither_its_rows_nor_its_log(tmp_path):
    with cf.federation(tmp_path) as loopback:
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        cf.await_heard(loopback)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=12, phase_deadline_s=20))
        run_id = loopback.start_run(plan, adapter, token="full")
        await_metrics(loopback, "two rounds", lambda now: now[ROUNDS] >= 2)
        assert readiness(loopback) == (200, "ready\n")
        limit_files(loopback, 0)
        await_metrics(
            loopback,
            "the disk is full",
            lambda now: (
                now["chorale_storage_faults_total"]
                and now.get("chorale_log_write_failures_total")
                and readiness(loopback)[0] == 503
            ),
        )
        done = loopback.metrics("coordinator")[ROUNDS]
        assert done < 12
        assert loopback.metrics("coordinator")["chorale_driver_failures_total"] == 0
        limit_files(loopback, UNLIMITED)
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert [figures["outcome"] for figures in rounds] == ["aggregated"] * 12
        until(lambda: readiness(loopback) == (200, "ready\n"), "the coordinator is ready")
        for party in ("coordinator", *cf.SILOS):
            assert loopback.alive(party)


@pytest.mark.long
def test_daemons_whose_log_takes_no_line_start_work_and_stop(tmp_path):
    full = ("coordinator", "silo-a")
    with cf.federation(tmp_path) as loopback:
        loopback.kill("coordinator")
        loopback.start_coordinator(module=FULL_LOG)
        for silo_id in cf.SILOS:
            if silo_id in full:
                loopback.start_silo(silo_id, module=FULL_LOG)
            else:
                loopback.start_silo(silo_id)
        # A silo that is heard of before the run is counted on from its first round.
        heard = [f'chorale_silo_last_seen_timestamp_seconds{{silo="{one}"}}' for one in cf.SILOS]
        began = time.time()
        await_metrics(
            loopback, "all are heard", lambda now: all(now[series] > began - 30 for series in heard)
        )
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=2))
        last, rounds = cf.watch_to_end(loopback, loopback.start_run(plan, adapter, token="log"))
        assert last["run"]["state"] == "finished", last
        for figures in rounds:
            assert tuple(figures["survivors"]) == cf.SILOS
        assert loopback.metrics("coordinator")["chorale_log_write_failures_total"] > 2
        assert loopback.metrics("silo-a")["chorale_silo_log_write_failures_total"] > 2
        assert loopback.metrics("silo-b")["chorale_silo_log_write_failures_total"] == 0
        stopped = [loopback._processes[party].popen for party in full]
        loopback.stop()
        assert [process.returncode for process in stopped] == [0, 0]


ON_A_FULL_DISK = textwrap.dedent("""
    import sys
    from pathlib import Path
    from ops.files import prove_writable
    from server.errors import StoreUnwritableError
    from server.store import Store

    disk = Path(sys.argv[1])
    store = Store(f"sqlite:///{disk / 'coordinator.db'}", create=True)
    store.check_writable()
    prove_writable(disk)
    # The log of the database has its room already, so it grows by a page at a time from here on.
    fill = (disk / "fill").open("wb", buffering=0)
    try:
        while True:
            fill.write(bytes(1 << 12))
    except OSError:
        pass
    try:
        prove_writable(disk)
    except OSError as error:
        print(error.errno)
    try:
        for _ in range(10_000):
            store.check_writable()
    except StoreUnwritableError as error:
        print(error)
    fill.close()
    (disk / "fill").unlink()
    store.check_writable()
    prove_writable(disk)
    print("writable")
""")


def namespace():
    """A command that may mount: as root, or as nobody who is root in a namespace of users."""
    for command in (["unshare", "-m"], ["unshare", "-Urm"]):
        mounted = [*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if subprocess.run(mounted, capture_output=True, check=False).returncode == 0:
            return command
    reason = "no namespace in which a file system can be mounted"
    if os.environ.get("CI_REQUIRES_TOOLS"):
        pytest.fail(reason)
    pytest.skip(reason)


def test_a_file_system_without_a_byte_is_told_from_one_with_room(tmp_path):
    mount = f'mount -t tmpfs -o size=8m,mode=700 tmpfs {tmp_path} && exec "$@"'
    done = subprocess.run(
        [*namespace(), "sh", "-c", mount, "sh", sys.executable, "-c", ON_A_FULL_DISK, tmp_path],
        capture_output=True, text=True, check=False, timeout=120, cwd=Path.cwd(),
    )  # fmt: skip
    enospc, why, last = done.stdout.splitlines()
    assert (enospc, last) == ("28", "writable"), done.stderr[-2000:]
    assert why.startswith("the database cannot be written: its disk is full")
