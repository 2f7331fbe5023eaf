"""``chorale deploy`` and ``chorale-silo deploy``: what they write, refuse and print."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path, PurePosixPath

import pytest
import yaml

from federation.errors import DeploymentError
from ops.deploy import files as deployment
from ops.deploy.files import PARTS, DeploymentFile, shipped, write_files
from server.pki.keys import read_public_key
from tests.kit.paths import ROOT

PROGRAMS = {"chorale": "server.cli.main", "chorale-silo": "silo_agent.cli.main"}
KINDS = [
    ("chorale", "systemd"),
    ("chorale", "compose"),
    ("chorale", "helm"),
    ("chorale-silo", "systemd"),
]


@pytest.fixture
def types(monkeypatch, capfd):
    """Run a command here; its exit code, what it answered, and what it said."""

    def run(program, *words):
        monkeypatch.setattr(sys, "argv", [program, *map(str, words), "--format", "json"])
        code = 0
        try:
            import_module(PROGRAMS[program]).main()
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capfd.readouterr()
        return code, json.loads(out), err

    return run


@pytest.mark.parametrize(("program", "kind"), KINDS)
def test_files_are_written_once_and_never_over_others(program, kind, types, tmp_path):
    out = tmp_path / "out"
    code, answer, said = types(program, "deploy", kind, "--out", out)
    assert code == 0, said
    data = answer["data"]
    written = {str(path) for path in out.rglob("*") if path.is_file()}
    assert set(data["files"]) == written
    assert data["next_steps"]
    for step in data["next_steps"]:
        assert f"next: {step}" in said
    before = {path: Path(path).read_bytes() for path in written}

    victim = max(written)
    for other in sorted(written)[:-1]:
        Path(other).unlink()
    Path(victim).chmod(0o600)
    Path(victim).write_text("edited by somebody")
    code, answer, said = types(program, "deploy", kind, "--out", out)
    assert (code, answer["error_code"]) == (4, "deployment")
    assert victim in answer["message"]
    assert "Traceback" not in said
    # Not even the files that were missing: half a deployment is worse than none.
    assert [str(path) for path in out.rglob("*") if path.is_file()] == [victim]
    assert Path(victim).read_text() == "edited by somebody"
    assert len(before) == len(data["files"])


def test_no_file_is_written_through_a_link(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "target" / "b")
    with pytest.raises(DeploymentError, match="there is already"):
        write_files([DeploymentFile(path=PurePosixPath("a"), content=b"x")], tmp_path / "out")
    assert not (tmp_path / "target" / "b").exists()


@pytest.mark.parametrize("name", ["../a", "/etc/a", "b/../../a"])
def test_no_name_leads_out_of_the_directory(name, tmp_path):
    with pytest.raises(DeploymentError, match="no name below"):
        write_files([DeploymentFile(path=PurePosixPath(name), content=b"x")], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_can_be_read_by_services_whatever_the_umask(tmp_path):
    old = os.umask(0o077)
    try:
        places = write_files(shipped("compose/steps"), tmp_path / "out")
    finally:
        os.umask(old)
    assert {place.stat().st_mode & 0o777 for place in places} == {0o755}
    assert {p.stat().st_mode & 0o777 for p in (places[0].parent, tmp_path / "out")} == {0o755}


def test_an_installation_without_the_files_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(deployment, "_PLACES", (tmp_path,))
    with pytest.raises(DeploymentError, match="carries no systemd"):
        shipped("systemd")


def test_a_unit_that_was_changed_is_not_filled_in(tmp_path, monkeypatch, types):
    """Half of it would stand for another place than the other half."""
    shutil.copytree(ROOT / "deploy" / "systemd", tmp_path / "systemd")
    unit = tmp_path / "systemd" / "chorale-coordinator.service"
    unit.write_text(unit.read_text().replace("User=chorale\n", "User=other\n"))
    monkeypatch.setattr(deployment, "_PLACES", (tmp_path,))
    code, answer, _ = types("chorale", "deploy", "systemd", "--out", tmp_path / "out")
    assert (code, answer["error_code"]) == (4, "deployment")
    assert "not as it was shipped" in answer["message"]
    assert not (tmp_path / "out").exists()


UNITS = {
    ("chorale", "chorale-coordinator"): "/var/lib/chorale",
    ("chorale-silo", "chorale-silo"): "/var/lib/chorale-silo",
}


@pytest.mark.parametrize(("program", "unit"), UNITS)
def test_a_unit_is_filled_in(program, unit, types, tmp_path):
    code, answer, said = types(
        program, "deploy", "systemd", "--out", tmp_path / "out", "--user", "wards",
        "--executable", f"/srv/venv/bin/{unit}", "--state-dir", "/srv/chorale-data/one",
    )  # fmt: skip
    assert code == 0, said
    assert answer["data"]["warnings"] == []
    text = (tmp_path / "out" / f"{unit}.service").read_text()
    assert re.search(
        rf"(?m)^ExecStart=/srv/venv/bin/{unit} \w+ --data /srv/chorale-data/one$", text
    )
    for line in ("User=wards", "Group=wards", "ReadWritePaths=/srv/chorale-data/one",
                 "WorkingDirectory=/srv/chorale-data/one"):  # fmt: skip
        assert f"\n{line}\n" in text
    assert "StateDirectory=" not in text
    assert "/var/lib" not in text.partition("[Unit]")[2]
    assert "/opt/chorale" not in text
    sysusers = (tmp_path / "out" / f"{unit}.sysusers.conf").read_text()
    assert re.search(r'(?m)^u wards - ".+" /srv/chorale-data/one -$', sysusers)
    tmpfiles = (tmp_path / "out" / f"{unit}.tmpfiles.conf").read_text()
    assert re.search(r"(?m)^d /srv/chorale-data/one 0700 wards wards -$", tmpfiles)


@pytest.mark.parametrize(("program", "unit"), UNITS)
def test_below_var_lib_systemd_makes_the_directory(program, unit, types, tmp_path):
    types(program, "deploy", "systemd", "--out", tmp_path / "out", "--state-dir", "/var/lib/a/b")
    text = (tmp_path / "out" / f"{unit}.service").read_text()
    assert "\nStateDirectory=a/b\n" in text
    assert "ReadWritePaths" not in text


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--state-dir", "/home/hospital/data", "does not see"),
        ("--state-dir", "/tmp/data", "does not see"),
        ("--state-dir", "/srv/with space", "cannot stand in a unit"),
        ("--state-dir", "/srv/%h", "cannot stand in a unit"),
        ("--state-dir", "/srv/a\nExecStartPre=/bin/sh", "cannot stand in a unit"),
        ("--executable", "/opt/x; rm", "cannot stand in a unit"),
        ("--executable", "/opt/../root/x", "cannot stand in a unit"),
        ("--user", "root\nAmbientCapabilities=CAP_SYS_ADMIN", "no account's name"),
        ("--user", "", "no account's name"),
    ],
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_with_a_meaning_of_its_own_gets_into_a_unit(  # noqa: PLR0917 - what is tried
    program, option, value, why, types, tmp_path
):
    out = tmp_path / "out"
    code, answer, said = types(program, "deploy", "systemd", "--out", out, option, value)
    assert (code, answer["error_code"]) == (4, "deployment"), said
    assert why in answer["message"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "executable", ["/home/me/venv/bin/x", "/root/venv/bin/x", "/tmp/x", "/run/user/1000/x"]
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_executable_that_the_sandbox_hides_is_told(program, executable, types, tmp_path):
    _, answer, said = types(
        program, "deploy", "systemd", "--out", tmp_path / "out", "--executable", executable
    )
    (warning,) = answer["data"]["warnings"]
    assert executable in warning
    assert f"warning: {warning}" in said


def test_every_printed_command_exists(types, tmp_path):
    from tests.kit.deploy.commands import require_command

    for number, (program, kind) in enumerate(KINDS):
        _, answer, _ = types(program, "deploy", kind, "--out", tmp_path / str(number))
        for step in answer["data"]["next_steps"]:
            words = shlex.split(step) if step.startswith("sudo -u ") else []
            if words:
                require_command([PurePosixPath(words[3]).name, *words[4:]])


def test_the_grafana_password_is_new_each_time_and_shut_in(types, tmp_path):
    passwords = set()
    for name in ("one", "two"):
        types("chorale", "deploy", "compose", "--out", tmp_path / name)
        secret = tmp_path / name / "compose" / "secrets" / "grafana-admin-password"
        assert secret.parent.stat().st_mode & 0o777 == 0o700
        passwords.add(secret.read_text())
    assert len(passwords) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", password) for password in passwords)


def test_what_compose_mounts_is_written_with_it(types, tmp_path):
    types("chorale", "deploy", "compose", "--out", tmp_path / "out")
    compose = tmp_path / "out" / "compose" / "compose.yaml"
    content = yaml.safe_load(compose.read_text())
    mounted = {
        volume.partition(":")[0]
        for service in content["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    }
    assert len(mounted) >= 5
    for source in (*mounted, *(s["file"] for s in content["secrets"].values())):
        assert (compose.parent / source).exists(), source
    # The image is built from a source tree, which is not here.
    assert not any("build" in service for service in content["services"].values())


def test_the_chart_is_written_with_what_is_known(types, tmp_path):
    subprocess.run(
        [Path(sys.executable).with_name("chorale"), "root", "init", "--dir", tmp_path / "root"],
        check=True, capture_output=True,
    )  # fmt: skip
    public = tmp_path / "root" / "root.pub"
    code, _, said = types(
        "chorale", "deploy", "helm", "--out", tmp_path / "out", "--host", "coord.example.org",
        "--host", "10.0.0.1", "--root-certificate", public,
    )  # fmt: skip
    assert code == 0, said
    values = yaml.safe_load((tmp_path / "out" / "values.yaml").read_text())["coordinator"]
    assert values["hosts"] == ["coord.example.org", "10.0.0.1"]
    (tmp_path / "again.pub").write_text(values["rootPublicKey"]["value"])
    assert read_public_key(tmp_path / "again.pub") == read_public_key(public)
    for linked, shown in (
        ("rules/coordinator.yml", "prometheus/rules/coordinator.yml"),
        ("rules/silo.yml", "prometheus/rules/silo.yml"),
        ("dashboards/federation.json", "grafana/dashboards/federation.json"),
        ("dashboards/silo.json", "grafana/dashboards/silo.json"),
    ):
        written = tmp_path / "out" / "chorale" / linked
        assert not written.is_symlink()
        assert written.read_bytes() == (ROOT / "deploy" / shown).read_bytes()


def test_the_roots_private_key_is_not_put_into_values(types, tmp_path):
    subprocess.run(
        [Path(sys.executable).with_name("chorale"), "root", "init", "--dir", tmp_path / "root"],
        check=True, capture_output=True,
    )  # fmt: skip
    code, answer, _ = types(
        "chorale", "deploy", "helm", "--out", tmp_path / "out",
        "--root-certificate", tmp_path / "root" / "root.key",
    )  # fmt: skip
    assert code == 4, answer
    assert not (tmp_path / "out").exists()


def test_the_wheel_is_told_to_carry_every_part():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    carried = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert carried == {f"deploy/{part}": f"ops/deploy/deployment_files/{part}" for part in PARTS}


def test_no_part_can_carry_a_secret_of_a_checkout():
    """Parts are named one by one where somebody's own files may lie beside them."""
    assert "compose" not in PARTS
    assert not any(part.startswith("compose/secrets") for part in PARTS)
    assert "secrets/" in (ROOT / "deploy" / "compose" / ".gitignore").read_text().split()
    assert "deploy/compose/secrets" in (ROOT / ".dockerignore").read_text().split()
