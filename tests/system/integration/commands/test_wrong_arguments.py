"""Who gives the wrong thing is told what to do about it, with the exit code that fits.

The coordinator's ports are real, and so is what a silo joins; daemons that are not to start are
processes of their own.

Covered: a wrong data directory, an invite that was cut, a base model that is not there, a wrong
clock, values and hosts that cannot be, ports that are taken, a second daemon, a reader that leaves.
Not covered: an empty directory, which ``test_cli_contract.py`` gives every command.
"""

import datetime as dt
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import server.cli.main as chorale_main
import silo_agent.cli.main as silo_main
from federation.membership.invite import parse_invite
from federation.membership.roster_change import fingerprint
from ops.cli.envelope import Exit
from server.site.claim import Claim
from server.store.served import database_in_force
from silo_agent.identity.identity import Identity
from silo_agent.identity.join import join
from tests.kit.processes import constant_federation as cf
from tests.kit.processes import doctor_servers as servers

pytestmark = pytest.mark.xdist_group("wrong_arguments")

PROGRAMS = {"chorale": chorale_main.main, "chorale-silo": silo_main.main}


@pytest.fixture
def told(monkeypatch, capfd):
    """Run a command here; its exit code and envelope, or for text what is said to people."""

    def run(program, *arguments, stdin="", text=False):
        words = [program, *map(str, arguments), *(() if text else ("--format", "json"))]
        capfd.readouterr()
        # The coordinator runs in this process too, and its log is no answer of the command.
        with monkeypatch.context() as patch, capture_logs():
            patch.setattr(sys, "argv", words)
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            try:
                PROGRAMS[program]()
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
        out, err = capfd.readouterr()
        assert "Traceback" not in err, err
        return code, (out + err if text else json.loads(out))

    return run


def advice(answer):
    return f"{answer['hint']} {answer['next_step']}"


@pytest.mark.parametrize(
    ("program", "words", "names"),
    [
        ("chorale", ("silo", "list"), ("CHORALE_DATA", "chorale init")),
        ("chorale", ("audit", "verify"), ("CHORALE_DATA", "chorale init")),
        ("chorale-silo", ("status",), ("CHORALE_SILO_DATA", "chorale-silo join")),
        ("chorale-silo", ("run",), ("CHORALE_SILO_DATA", "chorale-silo join")),
    ],
)
def test_a_directory_of_something_else_is_called_so(told, tmp_path, program, words, names):
    code, answer = told(program, *words, "--data", tmp_path)
    assert (code, answer["status"]) == (Exit.ARGUMENTS, "error")
    assert f"{tmp_path} is no" in answer["message"]
    for name in names:
        assert name in advice(answer)


def test_an_invite_that_was_cut_is_pasted_again_and_not_asked_for_anew(told, coordinator, tmp_path):
    line = coordinator.invite("hospital-cut")
    data = ("--data", tmp_path / "silo")
    for given in (line[:-7], line[:40], line + "x"):
        code, answer = told("chorale-silo", "join", "-", *data, stdin=f"{given}\n")
        assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "invite_malformed")
        assert "whole line" in advice(answer)
        assert "new" not in advice(answer)
    # And it can.
    code, answer = told("chorale-silo", "join", "-", *data, stdin=f"{line}\n")
    assert (code, answer["data"]["silo_id"]) == (0, "hospital-cut")
    code, answer = told("chorale-silo", "join", coordinator.invite("hospital-2"), *data)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "already_joined")
    assert "--data" in advice(answer)
    # What was redeemed is spent, and then a new one is asked for.
    again = ("join", line, "--data", tmp_path / "another")
    code, answer = told("chorale-silo", *again)
    assert (code, answer["error_code"]) == (Exit.CONNECT, "invite_spent")
    assert "a new invite (chorale invite)" in advice(answer)


@pytest.mark.parametrize("base", ["nope", "/no/such/model", "nobody/such-model"])
def test_a_base_model_that_is_not_there_costs_no_invite(told, coordinator, tmp_path, base):
    line = coordinator.invite("hospital-base")
    data = ("--data", tmp_path / "silo")
    code, answer = told("chorale-silo", "join", line, "--base-model", base, *data)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "config")
    assert base in answer["message"]
    assert "nothing was sent" in answer["message"]
    assert not (tmp_path / "silo").exists()
    assert told("chorale-silo", "join", line, *data)[0] == 0


def test_a_clock_that_is_off_by_days_is_named(told, coordinator, tmp_path, monkeypatch):
    real = dt.datetime.now(dt.UTC)
    for days, code_word in ((-3, "wrong_clock"), (3, "invite_expired")):
        now = real + dt.timedelta(days=days)
        line = coordinator.invite("hospital-clock")
        with monkeypatch.context() as patch:
            faked = SimpleNamespace(time=now.timestamp)
            patch.setattr("silo_agent.identity.join.time", faked)
            code, answer = told("chorale-silo", "join", line, "--data", tmp_path / "silo")
        assert (code, answer["error_code"]) == (Exit.CONNECT, code_word)
        assert f"says {now:%F}" in answer["message"]
        assert "clock" in answer["message"]
        assert "clock" in advice(answer)
        assert not (tmp_path / "silo" / "identity").exists()
    assert told("chorale-silo", "join", line, "--data", tmp_path / "silo")[0] == 0


@pytest.mark.parametrize(
    "validity",
    [
        {"begins": servers.DAY, "ends": 3 * servers.DAY},
        {"begins": -3 * servers.DAY, "ends": -servers.DAY},
    ],
)
def test_a_certificate_that_is_not_valid_now_speaks_of_the_clock(
    told, coordinator, tmp_path, validity
):
    pki = coordinator.config.paths.pki
    leaf, key = servers.issue(pki, names=[servers.loopback_name()], server=True, **validity)
    chain = leaf + (pki / "ca.pem").read_bytes()
    with servers.listening(servers.server_context(tmp_path, chain, key)) as address:
        line = replace(parse_invite(coordinator.invite("hospital-day")), enrol_address=address)
        code, answer = told("chorale-silo", "join", line.encode(), "--data", tmp_path / "silo")
    assert (code, answer["error_code"]) == (Exit.CONNECT, "wrong_clock")
    assert "this machine's clock says" in answer["message"]
    assert "timedatectl" in advice(answer)


@pytest.mark.parametrize("cap", ["-1", "0", "nan", "inf"])
def test_a_cap_that_caps_nothing_is_an_argument(told, coordinator, cap):
    words = ("federation", "create", "clinics", "--epsilon-cap", cap)
    code, answer = told("chorale", *words, "--data", coordinator.data_dir)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "federation_terms")
    assert f"epsilon_cap is a number above 0 and at most 1e18, not {cap}" in answer["message"]
    assert "federation create --help" in advice(answer)


def test_a_host_with_a_scheme_makes_nothing(told, coordinator, tmp_path):
    data = tmp_path / "data"
    root = ("--root-certificate", coordinator.root_dir / "root.pub", "--dir", data)
    code, answer = told("chorale", "init", "--host", "https://coord.example.org", *root)
    assert code == Exit.ARGUMENTS
    assert "'https://coord.example.org' is neither" in answer["message"]
    assert "nothing was made" in advice(answer)
    root = ("--root-certificate", tmp_path / "nope.pub", "--dir", data)
    code, answer = told("chorale", "init", "--host", "coord.example.org", *root)
    assert code == Exit.ARGUMENTS
    assert "nope.pub" in answer["message"]
    assert "nothing was made" in advice(answer)
    assert not data.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("run", "start", "nope.toml"),
        ("run", "plan", "nope.toml"),
        ("roster", "publish", "nope.json"),
    ],
)
def test_a_path_that_is_not_there_is_named(told, coordinator, words):
    code, answer = told("chorale", *words, "--data", coordinator.data_dir)
    assert code == Exit.ARGUMENTS
    assert words[-1] in answer["message"]
    assert advice(answer).strip()


# Daemons that are not to start --------------------------------------------------------------------


def refused(module, *arguments):
    """Exit code and what is said of a daemon that ends at once."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


def test_a_coordinator_on_a_port_that_is_taken(coordinator, tmp_path):
    data = shutil.copytree(coordinator.data_dir, tmp_path / "data")
    code, said = refused("server.cli.coordinator", "serve", "--data", data)
    assert code == Exit.SERVER
    assert f"cannot listen on {coordinator.config.listen}" in said
    assert "GRPC_VERBOSITY" not in said.rpartition("error: ")[2]
    assert "ss -ltnp" in said


def test_a_coordinator_where_another_one_serves(coordinator):
    with Claim(coordinator.data_dir, database_in_force(coordinator.config)):
        code, said = refused("server.cli.coordinator", "serve", "--data", coordinator.data_dir)
    assert code == Exit.SERVER
    assert f"pid {os.getpid()}" in said
    assert "--standby" in said


@pytest.fixture
def silo(coordinator, tmp_path):
    directory = tmp_path / "silo"
    join(coordinator.invite("hospital-a"), directory)
    (directory / "silo.toml").write_text(cf.silo_toml("silo-a"))
    (directory / "policy.toml").write_text(cf.policy_toml())
    return directory


def test_a_silo_whose_probes_port_is_taken(silo):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        text = (silo / "silo.toml").read_text()
        (silo / "silo.toml").write_text(text.replace("127.0.0.1:0", listen))
        code, said = refused("silo_agent.cli.main", "run", "--data", silo)
    assert code == Exit.SERVER
    assert f"cannot serve probes on {listen}" in said
    assert "probes_listen in silo.toml" in said


# What is there to compare -------------------------------------------------------------------------


def test_status_prints_every_fingerprint(told, coordinator, silo):
    _, answer = told("chorale-silo", "status", "--data", silo)
    data, mine = answer["data"], Identity.load(silo)
    _, known = told("chorale", "ca", "show", "--data", coordinator.data_dir)
    assert data["ca_sha256"] == [known["data"]["issuing"]["sha256"]]
    assert data["root_fingerprint"] == fingerprint(coordinator.root_key)
    assert data["certificate_sha256"] == mine.certificate_sha256.hex()
    assert data["key_fingerprint"] == fingerprint(mine.signing_key.public_key().public_bytes_raw())
    _, text = told("chorale-silo", "status", "--data", silo, text=True)
    assert f"root: {data['root_fingerprint']}\n" in text
    assert f"CA: {data['ca_sha256'][0]}\n" in text
    assert f"certificate: {data['certificate_sha256']}, until " in text
    assert f"key: {data['key_fingerprint']}\n" in text


def test_the_root_says_the_fingerprint_that_silos_show(told, tmp_path):
    code, answer = told("chorale", "root", "init", "--dir", tmp_path / "root")
    key = bytes.fromhex(answer["data"]["root_key"])
    assert (code, answer["data"]["root_fingerprint"]) == (0, fingerprint(key))


@pytest.mark.parametrize(
    "words", [("audit", "tail"), ("run", "watch", "run-1"), ("silo", "list"), ("doctor",)]
)
@pytest.mark.parametrize("both", [False, True])
def test_a_reader_that_leaves_ends_it_without_a_word(coordinator, words, both):
    """As `| head -1` and `2>&1 | head -1` do, who has left before the first line here."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "server.cli.main", *words, "--data", coordinator.data_dir],
        stdout=writer,
        stderr=writer if both else subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    # What a watch says of each round goes to stderr, whoever reads it.
    for word in ("error", "Traceback", "Exception"):
        assert both or word not in done.stderr


def test_no_invite_is_in_a_list_of_processes(coordinator, tmp_path):
    """The line comes on standard input, from where `chorale invite` printed it."""
    invite = subprocess.run(
        [
            sys.executable, "-m", "server.cli.main", "invite", "oncology", "hospital-pipe",
            "--data", coordinator.data_dir,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    code = subprocess.run(
        [sys.executable, "-m", "silo_agent.cli.main", "join", "-", "--data", tmp_path / "silo"],
        input=invite.stdout,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    ).returncode
    assert code == 0
    assert Identity.load(Path(tmp_path / "silo")).silo_id == "hospital-pipe"
