"""``chorale-silo doctor``: every failure is caused for real, found by its step, and has a fix."""

import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from dp.ledger.ledger import Ledger
from lab.loopback import free_port
from ops.doctor.checkup import Outcome
from silo_agent.books.ledger import open_ledger
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.doctor.doctor import examine_silo
from silo_agent.errors import TransportError
from silo_agent.identity.identity import Identity
from silo_agent.policy.document import Policy
from tests.kit.evolution.tiny_base import writable_copy
from tests.kit.processes import constant_federation as cf
from tests.kit.processes import doctor_servers as servers
from tests.kit.silo_agent.command_line import call

pytestmark = pytest.mark.xdist_group("doctor_silo")
SILO = cf.SILOS[0]


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    with cf.federation(tmp_path_factory.mktemp("doctor"), silos=cf.SILOS[:3]) as running:
        yield running


@pytest.fixture
def data_dir(loopback, tmp_path):
    """A copy of an enrolled silo's directory; its coordinator runs."""
    return shutil.copytree(loopback.silo_dir(SILO), tmp_path / "silo")


def examined(data_dir, *, dry_round=False):
    told = []
    found = examine_silo(data_dir, dry_round=dry_round, told=told.append)
    assert tuple(told) == found.findings
    return found


def step(found, name):
    (finding,) = [finding for finding in found.findings if finding.name == name]
    return finding


def assert_failed(data_dir, name, *words, skipped=(), dry_round=False):
    found = examined(data_dir, dry_round=dry_round)
    finding = step(found, name)
    assert finding.outcome is Outcome.FAILED, found.findings
    assert finding.fix
    for word in words:
        assert word in finding.found + finding.fix, finding
    assert found.first_failed == finding, found.first_failed
    for later in skipped:
        assert step(found, later).outcome is Outcome.SKIPPED
    return found


def assert_warned(data_dir, name, *words):
    found = examined(data_dir)
    finding = step(found, name)
    assert finding.outcome is Outcome.WARNING, finding
    assert finding.fix
    for word in words:
        assert word in finding.found + finding.fix, finding
    assert found.first_failed is None, found.first_failed


def at(data_dir, address):
    """Let the silo dial another address."""
    facts = data_dir / "identity/identity.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "coordinator_address": address}))


def contents(directory):
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_sound_silo_has_no_failure(data_dir):
    found = examined(data_dir, dry_round=True)
    assert {f.outcome for f in found.findings} == {Outcome.OK}, found.findings


def test_the_command_prints_every_step_and_exits_by_the_worst(data_dir):
    def doctor(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "silo_agent.cli.main", "doctor", "--data", data_dir, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    sound = doctor("--format", "json")
    assert sound.returncode == 0, sound.stderr
    assert json.loads(sound.stdout)["data"]["counts"]["failed"] == 0
    at(data_dir, f"127.0.0.1:{free_port()}")
    away = doctor("--format", "json")
    envelope = json.loads(away.stdout)
    assert (away.returncode, envelope["error_code"]) == (2, "doctor_tcp")
    assert "firewall" in envelope["next_step"]
    assert "failed   tcp" in doctor().stdout
    (data_dir / "policy.toml").write_text("surprise = 1")
    assert doctor().returncode == 1


def test_an_absent_directory(tmp_path):
    assert_failed(tmp_path / "none", "data_directory", "chorale-silo join", skipped=("identity",))


def test_a_directory_of_something_else(tmp_path):
    tmp_path.chmod(0o700)
    assert_failed(tmp_path, "configuration", "is no silo's", "CHORALE_SILO_DATA")


def test_a_directory_that_others_can_read(data_dir):
    data_dir.chmod(0o755)
    assert_failed(data_dir, "data_directory", "chmod 700")
    data_dir.chmod(0o750)
    assert_warned(data_dir, "data_directory", "chmod 700")


def test_an_unknown_setting(data_dir):
    (data_dir / "silo.toml").write_text("surprise = 1\n")
    assert_failed(data_dir, "configuration", "surprise", skipped=("environments", "disk"))


def test_a_key_that_others_can_read(data_dir):
    (data_dir / "identity/leaf.key").chmod(0o640)
    assert_failed(data_dir, "identity", "leaf.key", "chmod 600", skipped=("tls", "call"))


def test_a_key_of_another_certificate(data_dir):
    key = servers.key_pem(ec.generate_private_key(ec.SECP256R1()))
    (data_dir / "identity/leaf.key").write_bytes(key)
    assert_failed(data_dir, "identity", "not the key of")


def leaf(loopback, data_dir, *, silo=SILO, **validity):
    """Replace the certificate by another of the same CA."""
    names = [servers.uri(f"spiffe://demo/silo/{silo}")]
    certificate, key = servers.issue(loopback.data_dir / "pki", names=names, **validity)
    (data_dir / "identity/leaf.pem").write_bytes(certificate)
    (data_dir / "identity/leaf.key").write_bytes(key)


def test_a_certificate_of_another_silo(loopback, data_dir):
    leaf(loopback, data_dir, silo="silo-z")
    assert_failed(data_dir, "identity", "silo-z", "chorale invite")


def test_an_expired_certificate_is_found_before_anything_is_dialled(loopback, data_dir):
    leaf(loopback, data_dir, begins=-3 * servers.DAY, ends=-servers.DAY)
    found = assert_failed(
        data_dir,
        "certificate",
        "ended at",
        "chorale invite",
        "chorale-silo join -",
        skipped=("tls", "call", "roster"),
    )
    assert found.only_connection


def test_a_clock_before_the_certificate(loopback, data_dir):
    leaf(loopback, data_dir, begins=servers.DAY, ends=3 * servers.DAY)
    assert_failed(data_dir, "certificate", "clock", "timedatectl", skipped=("tls",))


def test_a_clock_before_what_this_silo_wrote(data_dir):
    later = time.time() + 3600
    os.utime(data_dir / "silo.toml", (later, later))
    assert_failed(data_dir, "clock", "silo.toml", "timedatectl")


def test_a_certificate_that_ends_soon(loopback, data_dir):
    leaf(loopback, data_dir, ends=servers.DAY)
    finding = step(examined(data_dir), "certificate")
    assert finding.outcome is Outcome.WARNING
    # The daemon does it; an invite is for when it is too late.
    for word in ("chorale-silo run", "certificate_not_renewed"):
        assert word in finding.fix


def test_a_name_that_nobody_resolves(data_dir):
    at(data_dir, "coord.invalid:7443")
    found = assert_failed(data_dir, "dns", "coord.invalid", skipped=("tcp", "tls", "call"))
    assert found.only_connection


def test_a_closed_port(data_dir):
    at(data_dir, f"127.0.0.1:{free_port()}")
    assert_failed(data_dir, "tcp", "firewall", skipped=("tls", "call", "roster"))


def test_a_port_that_speaks_something_else(data_dir):
    with servers.listening(says=b"220 smtp\r\n") as address:
        at(data_dir, address)
        assert_failed(data_dir, "tls", "no_tls", "proxy", skipped=("call",))


def test_a_silent_port_does_not_hang(data_dir, monkeypatch):
    monkeypatch.setattr("silo_agent.doctor.network.TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at(data_dir, f"127.0.0.1:{silent.getsockname()[1]}")
        assert_failed(data_dir, "tls", "no_tls")


def test_a_server_of_another_ca(data_dir, tmp_path):
    foreign = trustme.CA().issue_cert("127.0.0.1")
    key = foreign.private_key_pem.bytes()
    context = servers.server_context(tmp_path, foreign.cert_chain_pems[0].bytes(), key)
    with servers.listening(context) as address:
        at(data_dir, address)
        assert_failed(data_dir, "tls", "untrusted", "another CA")


@pytest.mark.parametrize(
    ("names", "validity", "stage", "fix"),
    [
        ([x509.DNSName("elsewhere.example")], {}, "name", "ask the admin to add it"),
        (None, {"begins": -3 * servers.DAY, "ends": -servers.DAY}, "expired", "renews"),
        (None, {"begins": servers.DAY, "ends": 3 * servers.DAY}, "not_yet_valid", "timedatectl"),
    ],
)
def test_a_server_certificate_that_is_wrong(  # noqa: PLR0917 - fixtures and parameters
    loopback, data_dir, tmp_path, names, validity, stage, fix
):
    certificate, key = servers.issue(
        loopback.data_dir / "pki",
        names=names or [servers.loopback_name()],
        server=True,
        **validity,
    )
    with servers.listening(servers.server_context(tmp_path, certificate, key)) as address:
        at(data_dir, address)
        found = assert_failed(data_dir, "tls", f"({stage})", fix)
        assert ("this clock says" in step(found, "tls").found) == bool(validity)


def test_a_server_that_refuses_our_certificate(loopback, data_dir, tmp_path):
    certificate, key = servers.issue(
        loopback.data_dir / "pki", names=[servers.loopback_name()], server=True
    )
    context = servers.server_context(tmp_path, certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    trustme.CA().configure_trust(context)
    with servers.listening(context) as address:
        at(data_dir, address)
        assert_failed(data_dir, "tls", "(client)", "new invite")


def test_a_replaced_certificate_is_refused_by_the_call(loopback, tmp_path):
    old = shutil.copytree(loopback.silo_dir(cf.SILOS[2]), tmp_path / "old")
    loopback.enrol(cf.SILOS[2])
    found = assert_failed(old, "call", "certificate_revoked", "new invite", skipped=("roster",))
    assert found.only_connection
    assert examined(loopback.silo_dir(cf.SILOS[2])).first_failed is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            TransportError("DEADLINE_EXCEEDED: Deadline Exceeded", late=True),
            ("did not answer within 30 s", "load, disk and database"),
        ),
        (TransportError("UNAVAILABLE: gone"), ("TLS are in order", "just have been stopped")),
    ],
)
def test_a_call_without_an_answer_is_no_refusal(data_dir, monkeypatch, error, words):
    def rosters(_self, _epoch):
        raise error

    monkeypatch.setattr("silo_agent.line.transport.Coordinator.rosters", rosters)
    found = assert_failed(data_dir, "call", *words, skipped=("roster",))
    assert found.only_connection
    assert "refused" not in step(found, "call").found
    assert "silo list" not in step(found, "call").fix


def test_half_an_audit_record_is_a_power_cut_and_a_changed_one_is_evidence(
    data_dir, monkeypatch, capsys
):
    log = data_dir / "audit.jsonl"
    whole = log.read_text()
    log.write_text(whole + '{"at":"2026')
    assert_warned(data_dir, "audit", "half written", "chorale-silo run", "torn_write_cut")
    arguments = ("audit", "verify", "--data", str(data_dir), "--format", "json")
    code, out, _ = call(monkeypatch, capsys, *arguments)
    assert (code, json.loads(out)["error_code"]) == (1, "audit_torn")
    log.write_text(whole.replace('"at":"2', '"at":"1', 1))
    assert_failed(data_dir, "audit", "record 0", "evidence", "chorale-silo audit verify")


def test_shards_that_cannot_be_dealt_are_the_operators_to_choose(data_dir):
    (data_dir / "silo.toml").write_text(
        'environments = [{ environment = "craft", shard_index = 0, shard_count = 7 }]\n'
    )
    assert_failed(data_dir, "environments", "over 7 shards", "shard_count", "divides")


def test_an_older_roster_than_one_that_was_seen(data_dir):
    LocalStore(data_dir).set_newest_roster_epoch(9, bytes(32))
    assert_failed(data_dir, "roster", "ask the admin")


def test_a_silo_that_no_roster_lists(loopback):
    loopback.enrol(cf.FIVE[4])
    cf.configure(loopback, cf.FIVE[4])
    assert_warned(loopback.silo_dir(cf.FIVE[4]), "roster", "does not list")


def test_a_damaged_state(data_dir):
    (data_dir / "state.json").write_text("{")
    assert_failed(data_dir, "state", "state.json", skipped=("ledger", "roster"))


def test_policies(data_dir):
    (data_dir / "policy.toml").write_text("")
    assert_warned(data_dir, "policy", "refuses every plan", "policy init")
    (data_dir / "policy.toml").write_text("[limits]\nmax_rounds = -1\n")
    assert_failed(data_dir, "policy", "max_rounds", skipped=("ledger", "base_model"))


def a_ledger(data_dir):
    config = SiloConfig.load(data_dir)
    store = LocalStore(config.data_dir)
    with open_ledger(config, Policy.load(config.policy_file), store) as ledger:
        assert isinstance(ledger, Ledger)
        store.set_ledger_head(*ledger.head())
    return data_dir / "privacy.ledger"


def test_a_damaged_ledger(data_dir):
    path = a_ledger(data_dir)
    assert examined(data_dir).first_failed is None
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert_failed(data_dir, "ledger", "put back")


def test_a_lost_ledger(data_dir):
    a_ledger(data_dir).unlink()
    assert_failed(data_dir, "ledger", "missing", "put back")


def test_an_environment_server_that_is_away(data_dir):
    with (data_dir / "silo.toml").open("w") as file:
        file.write(
            'environments = ["openenv:calendar"]\n[foreign."openenv:calendar"]\n'
            f'url = "ws://127.0.0.1:{free_port()}/ws"\n' + FOREIGN
        )
    assert_failed(data_dir, "environments", "openenv:calendar", "start its server")


def test_a_harness_whose_command_is_not_there(data_dir):
    with (data_dir / "silo.toml").open("w") as file:
        file.write(
            'environments = ["harness:agent"]\n[foreign."harness:agent"]\n'
            'command = ["/nowhere/agent"]\nmax_steps = 4\nsuccess = { reward_at_least = 1.0 }\n'
        )
    assert_failed(data_dir, "environments", "/nowhere/agent", "correct [foreign]")


FOREIGN = """\
family = "calendar"
instruction = "Keep a calendar."
max_steps = 4
success = { reward_at_least = 1.0 }
observation = ["text"]
action = { message = "{action}" }
"""


def learner(data_dir, base):
    (data_dir / "silo.toml").write_text(f'base_model = "{base}"\nenvironments = ["craft"]\n')
    allowed = SiloConfig.load(data_dir).base_sha256().hex()
    (data_dir / "policy.toml").write_text(cf.policy_toml(model=allowed))
    return data_dir


def test_a_dry_round_trains_and_changes_nothing(data_dir, tiny_base, tmp_path, monkeypatch):
    learner(data_dir, tiny_base)
    a_ledger(data_dir)
    before = contents(data_dir)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    found = examined(data_dir, dry_round=True)
    dry = step(found, "dry_round")
    # Random weights say nothing that can be read: it trains, and somebody should know.
    assert dry.outcome is Outcome.WARNING, dry
    assert dry.found.startswith("fed-se: 4 episodes")
    assert "craft: 0 of 4 episodes solved" in dry.found
    assert "env try craft --show" in dry.fix
    assert found.first_failed is None
    assert contents(data_dir) == before
    assert not any(temporary.iterdir())
    assert Identity.load(data_dir).silo_id == SILO


def test_a_dry_round_tells_the_coordinator_nothing(loopback, data_dir, tiny_base):
    def calls():
        name = "grpc_server_handled_total"
        samples = loopback.metrics("coordinator")
        return {key: value for key, value in samples.items() if key.startswith(name)}

    before = calls()
    assert examined(learner(data_dir, tiny_base), dry_round=True).first_failed is None
    after = calls()
    changed = {key for key, value in after.items() if value != before.get(key, 0)}
    assert len(changed) == 1, changed
    assert "GetRoster" in changed.pop()


def test_a_broken_model_is_found_by_the_dry_round(data_dir, tiny_base, tmp_path):
    broken = writable_copy(tiny_base, tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4096])
    learner(data_dir, broken)
    assert_failed(data_dir, "dry_round", dry_round=True)


def test_a_model_the_policy_does_not_allow(data_dir, tiny_base):
    learner(data_dir, tiny_base)
    (data_dir / "policy.toml").write_text(cf.policy_toml())
    finding = step(examined(data_dir), "base_model")
    assert finding.outcome is Outcome.WARNING
    assert "[models] allowed" in finding.found


def test_a_model_without_weights(data_dir, tiny_base, tmp_path):
    empty = writable_copy(tiny_base, tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    (data_dir / "silo.toml").write_text(f'base_model = "{empty}"\nenvironments = ["craft"]\n')
    assert_failed(data_dir, "base_model", "safetensors", skipped=("memory",))


def test_a_model_that_does_not_fit(data_dir, tiny_base, tmp_path):
    giant = writable_copy(tiny_base, tmp_path / "giant")
    config = json.loads((giant / "config.json").read_text())
    config |= {"hidden_size": 65536, "num_hidden_layers": 512, "intermediate_size": 262144}
    (giant / "config.json").write_text(json.dumps(config))
    assert_failed(learner(data_dir, giant), "memory", "GiB", "gradient_checkpointing")
