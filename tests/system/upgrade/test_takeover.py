"""The directories of a federation of the previous release, taken over by this version, and back.

Success: nothing that was spent is forgotten, what was signed still verifies, and the next run is
exact. Going back is refused and changes nothing; what goes back is a backup.
"""

import json
import shutil
import sqlite3
import subprocess

import numpy as np
import pytest

from tests.kit.processes import constant_federation as cf
from tests.system.upgrade.mixed_federation import EXACT, copied, founded, require_exact, start_silos

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("upgrade")]

SILOS = cf.SILOS


@pytest.fixture(scope="module")
def before(tmp_path_factory, installations):
    """The previous release alone: a run of two rounds with privacy, then everything stops."""
    previous, _ = installations
    silos = dict.fromkeys(SILOS, previous)
    with founded(tmp_path_factory.mktemp("before"), coordinator=previous, silos=silos) as loopback:
        start_silos(loopback, SILOS, "before the upgrade")
        plan = cf.plan_toml(rounds=2, mode="silo", noise=0.01)
        run_id = loopback.start_run(*cf.write_run(loopback, plan), token="before")
        status, _ = cf.watch_to_end(loopback, run_id)
        assert status["run"]["state"] == "finished", status
        data = str(loopback.data_dir)
        known = {
            "run": run_id,
            "adapter": status["run"]["adapter_sha256"],
            "coordinator": loopback.chorale("budget", "--data", data),
        }
        loopback.stop()
        known["silos"] = {silo: budget_of(loopback, silo) for silo in SILOS}
        yield loopback, known


def budget_of(loopback, silo_id):
    return loopback.silo("budget", "--data", str(loopback.silo_dir(silo_id)))


def require_recomputed(now, old):
    """The silo's ε and the chain are as they were; what it cost the units inside is added."""
    for same in ("delta", "unprotected", "ledger_seq", "ledger_sha256"):
        assert now[same] == old[same]
    (before,) = (row for row in old["units"] if row["unit"] == "silo")
    spent = {row["unit"]: row["epsilon_spent"]["epsilon"] for row in now["units"]}
    assert spent["silo"] == before["epsilon_spent"] > 0
    assert spent["task"] == spent["user"] > 2 * spent["silo"]


def refused(loopback, *arguments):
    done = subprocess.run(
        [*loopback.python("coordinator"), "-m", "server.cli.main", *arguments,
         "--data", str(loopback.data_dir), "--format", "json"],
        capture_output=True, text=True, timeout=120, check=False, env=loopback._environment(),
    )  # fmt: skip
    assert done.returncode != 0, done.stdout
    return json.loads(done.stdout)


def revision(loopback):
    with sqlite3.connect(loopback.data_dir / "coordinator.db") as connection:
        return connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]


def test_this_version_takes_over(tmp_path, installations, before):
    loopback, known = before
    _, current = installations
    old_revision = revision(loopback)
    with copied(
        tmp_path, loopback, coordinator=current, **dict.fromkeys(SILOS, current)
    ) as loopback:
        data = str(loopback.data_dir)
        assert revision(loopback) != old_revision
        # 0.1.0's admins were of the federation's own trust domain.
        refusal = refused(loopback, "silo", "list")
        assert refusal["error_code"] == "foreign_federation"
        assert "chorale admin renew" in refusal["hint"]
        loopback.chorale("admin", "renew", "--data", data)
        loopback.chorale("audit", "verify", "--data", data)
        terms = loopback.chorale("federation", "show", "--data", data)
        assert terms["name"] == "demo"
        now = loopback.chorale("budget", "--data", data)
        for run, before_it in zip(now["runs"], known["coordinator"]["runs"], strict=True):
            (own,) = (unit for unit in run["units"] if unit["unit"] == "silo")
            assert {**run, "units": [own]} == before_it
        assert now["heads"] == known["coordinator"]["heads"]
        for silo in SILOS:
            require_recomputed(budget_of(loopback, silo), known["silos"][silo])
        exported = tmp_path / "exported"
        loopback.chorale("adapter", "export", known["run"], "--out", str(exported), "--data", data)

        start_silos(loopback, SILOS, "after the upgrade")
        steps = loopback.chorale("doctor", "--data", data)["steps"]
        assert {step["name"]: step["outcome"] for step in steps}["versions"] == "ok"
        # The next run begins with the adapter that the last one ended with.
        started = cf.published(loopback, known["adapter"])
        plan_file, adapter = cf.write_run(loopback, cf.plan_toml(rounds=1, **EXACT))
        digest = known["adapter"]
        shutil.copyfile(loopback.data_dir / "adapters" / digest[:2] / digest, adapter)
        run_id = loopback.start_run(plan_file, adapter, token="after")
        status, rounds = cf.watch_to_end(loopback, run_id)
        assert status["run"]["state"] == "finished", status
        assert np.any(cf.flat(started) != cf.flat(cf.initial_tensors()))
        require_exact(loopback, rounds, cf.flat(started), SILOS)

        plan = cf.plan_toml(rounds=1, mode="silo", noise=0.01)
        run_id = loopback.start_run(*cf.write_run(loopback, plan), token="charged")
        assert cf.watch_to_end(loopback, run_id)[0]["run"]["state"] == "finished"
        loopback.chorale("audit", "verify", "--data", data)
        backup = tmp_path / "backup"
        loopback.chorale("backup", "--out", str(backup), "--data", data)
        loopback.stop()
        for silo in SILOS:
            loopback.silo("audit", "verify", "--data", str(loopback.silo_dir(silo)))
            (unit,) = [u for u in budget_of(loopback, silo)["units"] if u["unit"] == "silo"]
            (old,) = [u for u in known["silos"][silo]["units"] if u["unit"] == "silo"]
            assert unit["epsilon_spent"]["epsilon"] > old["epsilon_spent"] > 0
            assert "Traceback" not in loopback.log(silo)
        assert "Traceback" not in loopback.log("coordinator")


def test_the_previous_release_refuses_what_this_version_has_migrated(
    tmp_path, installations, before
):
    loopback, _ = before
    previous, current = installations
    members = dict.fromkeys(SILOS, current)
    with copied(tmp_path, loopback, coordinator=current, **members) as loopback:
        migrated = revision(loopback)
        loopback.stop()
        loopback.installations["coordinator"] = previous
        done = subprocess.run(
            [*previous.python, "-m", "server.cli.coordinator", "serve",
             "--data", str(loopback.data_dir)],
            capture_output=True, text=True, timeout=120, check=False, env=loopback._environment(),
        )  # fmt: skip
        print(done.stderr[-600:])
        assert done.returncode != 0
        assert f"Can't locate revision identified by '{migrated}'" in done.stdout + done.stderr
        assert revision(loopback) == migrated


def test_a_copy_from_before_the_upgrade_goes_back(tmp_path, installations, before):
    loopback, known = before
    previous, current = installations
    with copied(
        tmp_path / "there", loopback, coordinator=current, **dict.fromkeys(SILOS, current)
    ) as there:
        start_silos(there, SILOS, "upgraded")
        there.stop()
        # Silos go back with the files they have: neither ledger nor state changed their form.
        for silo in SILOS:
            there.installations[silo] = previous
        shutil.rmtree(there.data_dir)
        shutil.copytree(loopback.data_dir, there.data_dir)
        there.installations["coordinator"] = previous
        there.start_coordinator()
        start_silos(there, SILOS, "gone back")
        run_id = there.start_run(
            *cf.write_run(there, cf.plan_toml(rounds=1, **EXACT)), token="back"
        )
        status, rounds = cf.watch_to_end(there, run_id)
        assert status["run"]["state"] == "finished", status
        require_exact(there, rounds, cf.flat(cf.initial_tensors()), SILOS)
        assert known["run"] != run_id
