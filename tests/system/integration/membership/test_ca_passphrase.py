"""A CA whose key is encrypted serves, rotates, is restored; without its passphrase it says so."""

import json
import shutil
import subprocess
import sys

import pytest

from lab.loopback import LoopbackError, LoopbackFederation
from server.members.root import create_root
from server.site.founding import Founding, found

LOCKED = b"ENCRYPTED PRIVATE KEY"


@pytest.fixture
def federation(tmp_path):
    with LoopbackFederation(directory=tmp_path / "federation") as running:
        passphrase = tmp_path / "passphrase"
        passphrase.touch(mode=0o600)
        passphrase.write_text("correct horse\n")
        found(
            running.data_dir,
            Founding(
                hosts=("127.0.0.1",),
                root_public_key=create_root(running.root_dir),
                federation=running.federation,
                listen=f"127.0.0.1:{running.port}",
                enrol_listen=f"127.0.0.1:{running.enrol_port}",
                probes_listen=f"127.0.0.1:{running.probes_port}",
                ca_passphrase_file=passphrase,
            ),
        )
        yield running


def doctor(data_dir, name):
    done = subprocess.run(
        [sys.executable, "-m", "server.cli.main", "doctor", "--data", data_dir, "--format=json"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    (found_one,) = [s for s in json.loads(done.stdout)["data"]["steps"] if s["name"] == name]
    return found_one


@pytest.mark.long
def test_it_serves_rotates_and_is_restored(federation, tmp_path):
    data = ("--data", str(federation.data_dir))
    pki = federation.data_dir / "pki"
    assert LOCKED in (pki / "ca.key").read_bytes()
    federation.start_coordinator()
    federation.enrol("silo-a")
    federation.chorale("ca", "rotate", "--overlap", "1h", *data)
    keys = list((pki / "authorities").rglob("ca.key"))
    assert len(keys) == 2
    assert all(LOCKED in key.read_bytes() for key in keys)
    federation.chorale("admin", "renew", *data)
    federation.enrol("silo-b")
    judged = doctor(federation.data_dir, "keys")
    assert (judged["outcome"], judged["found"].endswith("the CA's is encrypted")) == ("ok", True)
    assert doctor(federation.data_dir, "root_key_absent")["outcome"] == "ok"
    backup = tmp_path / "backup"
    federation.chorale("backup", "--out", str(backup), *data)
    assert b"correct horse" not in backup.read_bytes()
    federation.stop()
    shutil.rmtree(federation.data_dir)
    federation.chorale("restore", str(backup), *data)
    federation.start_coordinator()
    federation.enrol("silo-c")


@pytest.mark.parametrize(
    ("content", "words"),
    [("wrong\n", "does not open"), ("", "no passphrase in its first line"), (None, "No such file")],
)
def test_without_the_passphrase_it_does_not_start_and_says_why(
    federation, tmp_path, content, words
):
    passphrase = tmp_path / "passphrase"
    if content is None:
        passphrase.unlink()
    else:
        passphrase.write_text(content)
    with pytest.raises(LoopbackError, match=words):
        federation.start_coordinator()
    judged = doctor(federation.data_dir, "keys")
    assert judged["outcome"] == "failed"
    assert words in judged["found"]
    assert "ca_passphrase_file" in judged["fix"]


def test_a_key_that_nobody_named_a_passphrase_for(federation):
    config = federation.data_dir / "coordinator.toml"
    kept = [line for line in config.read_text().splitlines() if "passphrase" not in line]
    config.write_text("\n".join(kept) + "\n")
    with pytest.raises(LoopbackError, match="name the file with its passphrase"):
        federation.start_coordinator()
