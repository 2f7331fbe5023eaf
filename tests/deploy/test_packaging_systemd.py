"""The systemd units: verified and rated by systemd's own tools, for both daemons.

They are started for real in ``test_packaging_systemd_run.py``.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ops.deploy.systemd import Service, ServiceInstallation, filled_files
from tests.kit.deploy.commands import require_command
from tests.kit.deploy.tools import require
from tests.kit.paths import ROOT

DIRECTORY = ROOT / "deploy" / "systemd"
SERVICES = {
    "chorale-coordinator": Service(
        name="chorale-coordinator", executable="/opt/chorale/bin/chorale-coordinator",
        data_dir="/var/lib/chorale", account="chorale", backup="/opt/chorale/bin/chorale",
    ),
    "chorale-silo": Service(
        name="chorale-silo", executable="/opt/chorale/bin/chorale-silo",
        data_dir="/var/lib/chorale-silo", account="chorale-silo",
    ),
}  # fmt: skip
GUIDE = ROOT / "docs" / "deployment.md"
MOST_EXPOSED = {"chorale-coordinator": 3.0, "chorale-silo": 4.5}
DROP_INS = {
    "coordinator-postgresql.conf": "chorale-coordinator",
    "coordinator-s3.conf": "chorale-coordinator",
    "probes-tls.conf": "chorale-coordinator",
    "silo-amd-gpu.conf": "chorale-silo",
}


def analyze(*arguments):
    require("systemd-analyze", "systemd")
    # Without the manager: it reads files, and nothing of this machine.
    environment = {"PATH": os.environ["PATH"], "SYSTEMD_COLORS": "0", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def installed(name, directory):
    """A unit for this installation, which verify then finds."""
    executable = Path(sys.executable).with_name(name)
    wanted = ServiceInstallation(
        executable=executable,
        data_dir=Path(SERVICES[name].data_dir),
        account=SERVICES[name].account,
    )
    unit, *_ = filled_files(SERVICES[name], wanted)
    path = directory / unit.path
    path.write_bytes(unit.content)
    return path


@pytest.mark.parametrize("name", SERVICES)
def test_systemd_verifies_the_unit(name, tmp_path):
    done = analyze("verify", "--man=no", installed(name, tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_systemd_would_complain(name, tmp_path):
    path = installed(name, tmp_path)
    path.write_text(path.read_text().replace("PrivateTmp=yes", "PrivateTemp=yes"))
    assert "PrivateTemp" in analyze("verify", "--man=no", path).stderr


@pytest.mark.parametrize(("drop_in", "name"), DROP_INS.items())
def test_systemd_verifies_each_drop_in(drop_in, name, tmp_path):
    path = installed(name, tmp_path)
    place = tmp_path / f"{path.name}.d"
    place.mkdir()
    shutil.copy(DIRECTORY / "drop-ins" / drop_in, place)
    done = analyze("verify", "--man=no", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in (DIRECTORY / "drop-ins").iterdir()} == set(DROP_INS)


@pytest.mark.parametrize(("name", "most"), MOST_EXPOSED.items())
def test_exposure_is_low(name, most, tmp_path):
    path = installed(name, tmp_path)
    done = analyze("security", "--offline=true", f"--threshold={most * 10:.0f}", path)
    exposure = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)[1])
    assert done.returncode == 0, done.stdout
    assert exposure <= most
    if analyze("--version").stdout.startswith("systemd 252 "):
        # Other versions weigh differently; the guide tells this one's figures.
        rows = r"(?m)^\| `systemd-analyze security` \| (\S+) \| (\S+) \|$"
        (row,) = re.findall(rows, GUIDE.read_text())
        assert float(row[list(MOST_EXPOSED).index(name)]) == exposure
    # The figure says something: without the sandbox it is high.
    bare = re.sub(r"(?m)^(Protect|Private|Restrict|SystemCall|Capability|NoNew|Device)\w+=.*$", "",
                  path.read_text())  # fmt: skip
    path.write_text(bare)
    assert analyze("security", "--offline=true", f"--threshold={most * 10:.0f}", path).returncode


@pytest.mark.parametrize("name", SERVICES)
def test_what_the_unit_starts_exists(name):
    text = (DIRECTORY / f"{name}.service").read_text()
    (line,) = re.findall(r"(?m)^ExecStart=(.*)$", text)
    words = line.split()
    require_command([Path(words[0]).name, *words[1:]])


@pytest.mark.parametrize("name", SERVICES)
def test_the_units_say_what_the_daemons_need(name):
    text = (DIRECTORY / f"{name}.service").read_text()
    settings = re.findall(r"(?m)^(\w+)=(.*)$", text)
    given = dict(settings)
    assert given["UMask"] == "0077"
    assert given["LimitCORE"] == "0"
    assert given["Restart"] == "on-failure"
    # Only the coordinator says that it lives (``ops/probes/heartbeat.py``).
    assert ("WatchdogSec" in given) == (given["Type"] == "notify") == ("coordinator" in name)
    assert given["CapabilityBoundingSet"] == ""
    # Longer than what a daemon takes to end by itself: 2 seconds, and 30 at the silo.
    assert int(given["TimeoutStopSec"]) >= {"chorale-coordinator": 10, "chorale-silo": 60}[name]
    known = {"HOME", "XDG_CACHE_HOME", "HF_HUB_OFFLINE", "PYTHONDONTWRITEBYTECODE"}
    for key, value in settings:
        if key == "Environment":
            assert {pair.partition("=")[0] for pair in value.split()} <= known


# The backup.


def installed_backup(directory, data_dir="/var/lib/chorale"):
    """Its service and timer for this installation, which verify then finds."""
    wanted = ServiceInstallation(
        executable=Path(sys.executable).with_name("chorale-coordinator"),
        data_dir=Path(data_dir),
        account="wards",
    )
    *_, service, timer = filled_files(SERVICES["chorale-coordinator"], wanted)
    for file in (service, timer):
        (directory / file.path).write_bytes(file.content)
    return directory / service.path, directory / timer.path


def test_systemd_verifies_the_backup_and_its_timer(tmp_path):
    done = analyze("verify", "--man=no", *installed_backup(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_backup_is_as_exposed_as_the_coordinator_at_most(tmp_path):
    service, _ = installed_backup(tmp_path)
    done = analyze("security", "--offline=true", "--threshold=30", service)
    assert done.returncode == 0, done.stdout


def test_the_backup_runs_a_command_of_ours_and_writes_two_directories(tmp_path):
    (line,) = re.findall(r"(?m)^ExecStart=/bin/sh -c 'exec (.*)'$",
                         (DIRECTORY / "chorale-backup.service").read_text())  # fmt: skip
    words = line.split()
    # The date is one word, with a blank in it.
    place = words.index("--out") + 1
    require_command([Path(words[0]).name, *words[1:place], "".join(words[place:])])
    service, _ = installed_backup(tmp_path, data_dir="/srv/federation")
    text = service.read_text()
    assert re.findall(r"(?m)^(?:StateDirectory|ReadWritePaths)=(.*)$", text) == [
        "chorale-backups",
        "/srv/federation",
    ]
    assert "--data /srv/federation --out /var/lib/chorale-backups/" in text
    assert "User=wards\n" in text


def test_the_backup_has_the_coordinators_sandbox():
    """But for what only a daemon that counts its own age needs."""
    kinds = (
        r"(?m)^((?:Protect|Private|Restrict|SystemCall|Capability|NoNew|Device|Lock|Memory)\w+=.*)$"
    )
    ours, theirs = (
        set(re.findall(kinds, (DIRECTORY / f"{name}.service").read_text()))
        for name in ("chorale-backup", "chorale-coordinator")
    )
    assert ours == theirs
