"""chorale-silo: the contract of its answers, its start-up time, and its read-only commands."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import structlog
from prometheus_client import CollectorRegistry

from federation.adapter.encoding import encode_adapter
from federation.plan.read import read_plan
from ops.cli.envelope import Exit, Format
from ops.probes.metrics import MetricsAccess
from ops.probes.server import ADDRESS_FILE, Probes
from silo_agent.books.local_store import ChainHead, LocalStore
from silo_agent.cli.program import answering
from silo_agent.config import SiloConfig
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.document import NO_PRIVACY, Policy
from tests.kit.paths import ROOT
from tests.kit.silo_agent.command_line import call
from tests.kit.silo_agent.policy_samples import MODES, NO_MODEL, PLAN, POLICY, edited

DENY_ALL = b"""
[limits]
max_dimension = 0
max_attempts_per_round = 0
min_episodes_per_round = 100
min_tasks_per_round = 25
"""
HEAVY = ("torch", "transformers", "peft", "minigrid", "gymnasium", "grpc", "numpy", "pydantic")


def test_help_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['chorale-silo', '--help']\n"
        "from silo_agent.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "join" in done.stdout
    assert done.stderr.strip() == "[]"


def test_budget_and_policy_load_no_learning_framework(silo: Path):
    code = (
        f"import sys; sys.argv = ['chorale-silo', 'budget', '--data', {str(silo)!r}]\n"
        "from silo_agent.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        f"plan = {str(silo / 'plan.toml')!r}\n"
        f"sys.argv = ['', 'policy', 'check', plan, '--data', {str(silo)!r}]\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_an_accepted_plan(silo: Path, monkeypatch, capsys):
    arguments = ("policy", "check", str(silo / "plan.toml"), "--data", str(silo))
    code, out, _ = call(monkeypatch, capsys, *arguments, "--format", "json")
    assert code == Exit.OK
    envelope = json.loads(out)
    assert envelope["schema_version"] == 1
    assert envelope["status"] == "ok"
    assert envelope["data"]["rule"] == "accepted"
    assert list(envelope["data"]["epsilons"]) == ["silo", "task", "user"]
    cost = envelope["data"]["epsilons"]["silo"]["epsilon"]
    _, out, err = call(monkeypatch, capsys, *arguments)
    assert out.startswith("accepted: ")
    assert f"at most epsilon {cost:.4g} for each silo" in out
    assert err == ""


def test_a_refused_plan_names_its_rule(silo: Path, monkeypatch, capsys):
    (silo / "policy.toml").write_text(
        edited(POLICY, NO_MODEL, ("max_clip_l2 = 2.0", "max_clip_l2 = 1.0"))
    )
    arguments = ("policy", "check", str(silo / "plan.toml"), "--data", str(silo))
    code, out, err = call(monkeypatch, capsys, *arguments, "--format", "json")
    envelope = json.loads(out)
    assert code == Exit.SERVER
    assert set(envelope) >= {"schema_version", "status", "error_code", "message", "hint"}
    assert (envelope["status"], envelope["error_code"]) == ("error", "policy_refusal")
    assert envelope["data"]["rule"] == "clip"
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert (code, out) == (Exit.SERVER, "refused by rule clip\n")
    assert err.startswith("error: refused by rule clip: ")


def test_a_target_that_the_base_lacks_is_the_plans_to_change(silo: Path, monkeypatch, capsys):
    published = ('base = "small"', 'base = "Qwen/Qwen2.5-0.5B"')
    target = ('dtype = "float32"', 'dtype = "float32"\ntarget = ["c_attn"]')
    (silo / "plan.toml").write_text(edited(PLAN, NO_MODEL, published, target))
    arguments = ("policy", "check", str(silo / "plan.toml"), "--data", str(silo))
    code, out, _ = call(monkeypatch, capsys, *arguments, "--format", "json")
    answer = json.loads(out)
    assert (code, answer["data"]["rule"]) == (Exit.SERVER, "target")
    assert "names 'c_attn'" in answer["message"]
    assert "target names layers" in answer["next_step"]


def test_the_budget_is_a_table_on_stdout(silo: Path, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, "budget", "--data", str(silo))
    assert (code, err) == (Exit.OK, "")
    assert "epsilon at delta 1e-05" in out
    assert [line.split() for line in out.splitlines()[1:4]] == [
        ["unit", "reserved", "left", "cap", "spent"],
        ["silo", "0", "50", "50", "0"],
        ["task", "0", "40", "40", "0"],
    ]


@pytest.mark.parametrize(
    ("file", "error_code"),
    [
        ("silo.toml", "config"),
        ("policy.toml", "policy_file"),
        ("plan.toml", "plan"),
    ],
)
def test_unknown_keys_are_argument_errors(
    silo: Path, monkeypatch, capsys, file: str, error_code: str
):
    (silo / file).write_text("nonsense = 1")
    code, out, err = call(
        monkeypatch, capsys,
        "policy", "check", str(silo / "plan.toml"), "--data", str(silo), "--format", "json",
    )  # fmt: skip
    envelope = json.loads(out)
    assert code == Exit.ARGUMENTS
    assert envelope["error_code"] == error_code
    assert "nonsense" in envelope["message"]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["budget", "--nonsense"], ["nonsense"], ["policy", "check"], ["approve"]]
)
def test_wrong_arguments_exit_with_their_own_code(monkeypatch, capsys, arguments: list[str]):
    code, out, _ = call(monkeypatch, capsys, *arguments)
    assert (code, out) == (Exit.ARGUMENTS, "")
    code, out, _ = call(monkeypatch, capsys, *arguments, "--format", "json")
    assert code == Exit.ARGUMENTS
    assert json.loads(out)["error_code"] == "arguments"


def test_a_missing_plan_file_is_an_argument_error(silo: Path, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "policy", "check", "none.toml", "--data", str(silo))
    assert code == Exit.ARGUMENTS
    assert "cannot read none.toml" in err


def test_a_bug_says_it_is_one(silo: Path, monkeypatch, capsys):
    def bug(*_arguments, **_options):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("silo_agent.books.budget.read_budget", bug)
    code, out, err = call(monkeypatch, capsys, "budget", "--data", str(silo), "--format", "json")
    assert code == Exit.BUG
    assert json.loads(out)["error_code"] == "bug"
    assert "Traceback" in err


def test_policy_init_replaces_its_own_file_and_an_edited_one_with_force(
    tmp_path: Path, monkeypatch, capsys
):
    given = ("policy", "init", "--data", str(tmp_path))
    for replaced in (False, True):
        code, out, _ = call(monkeypatch, capsys, *given, "--format", "json")
        assert code == Exit.OK
        assert json.loads(out)["data"] == {
            "policy_file": str(tmp_path / "policy.toml"),
            "replaced": replaced,
        }
    with (tmp_path / "policy.toml").open("a") as file:
        file.write("# read on Monday\n")
    code, _, err = call(monkeypatch, capsys, *given)
    assert code == Exit.ARGUMENTS
    assert "exists" in err
    assert "--force" in err
    assert "read on Monday" in (tmp_path / "policy.toml").read_text()
    code, _, err = call(monkeypatch, capsys, *given, "--force")
    assert code == Exit.OK
    assert "it replaced the one that was there" in err
    assert "read on Monday" not in (tmp_path / "policy.toml").read_text()


def test_policy_init_from_a_plan_is_a_policy_that_accepts_it(silo: Path, monkeypatch, capsys):
    (silo / "policy.toml").unlink()
    plan = str(silo / "plan.toml")
    assert call(monkeypatch, capsys, "policy", "init", "--plan", plan, "--data", str(silo))[0] == 0
    assert call(monkeypatch, capsys, "policy", "check", plan, "--data", str(silo))[0] == 0


def test_policy_init_says_that_the_plan_is_for_another_base(silo: Path, monkeypatch, capsys):
    """Whose policy would be in order, and every run refused all the same."""
    plan = silo / "plan.toml"
    for other in (False, True):
        if other:
            plan.write_text(plan.read_text().replace("0" * 64, "ab" * 32))
        (silo / "policy.toml").unlink()
        given = ("policy", "init", "--plan", str(plan), "--data", str(silo))
        code, _, err = call(monkeypatch, capsys, *given)
        assert code == Exit.OK
        assert ("this silo holds another" in err) == other


def test_policy_check_says_what_is_shown_and_not_capped(silo: Path, monkeypatch, capsys):
    policy, plan = silo / "policy.toml", str(silo / "plan.toml")

    def checked(caps: str) -> tuple[dict, str]:
        text = re.sub(
            r"(?m)^epsilon_caps = .*$", f"epsilon_caps = {{ {caps} }}", policy.read_text()
        )
        policy.write_text(text)
        given = ("policy", "check", plan, "--data", str(silo))
        code, out, _ = call(monkeypatch, capsys, *given, "--format", "json")
        assert code == Exit.OK
        return json.loads(out)["data"], call(monkeypatch, capsys, *given)[1]

    data, text = checked("silo = 50.0")
    assert data["shown_but_not_capped"] == ["task", "user"]
    assert "shown, but not capped: task, user" in text
    assert "for each task (zero-out adjacency)" in text
    assert data["epsilons"]["task"]["epsilon"] > data["epsilons"]["silo"]["epsilon"]
    data, text = checked("silo = 50.0, task = 1e3, user = 1e3")
    assert data["shown_but_not_capped"] == []
    assert "not capped" not in text


def test_a_plan_without_noise_waits_for_the_operators_word_and_says_which(
    silo: Path, monkeypatch, capsys
):
    plan = silo / "plan.toml"
    plan.write_text(edited(PLAN, NO_MODEL, *MODES["none"]))
    given = ("--data", str(silo))

    def typed(*arguments: str) -> tuple[int, str]:
        code, out, err = call(monkeypatch, capsys, "policy", *arguments, *given)
        return code, out + err

    def proposed(*options: str) -> str:
        (silo / "policy.toml").unlink()
        code, said = typed("init", "--plan", str(plan), *options)
        assert code == Exit.OK
        return said

    assert "stays refused: see accept_no_privacy" in proposed()
    code, said = typed("check", str(plan))
    assert code == Exit.SERVER
    assert f'accept_no_privacy = "{NO_PRIVACY}"' in said
    assert "stays refused" not in proposed("--accept-no-privacy")
    code, said = typed("check", str(plan))
    assert code == Exit.OK
    assert "episodes of a round: at least 128 (limits.min_episodes_per_round)" in said
    assert "tasks of a round: at least 32 (limits.min_tasks_per_round)" in said


def test_a_play_of_the_silo_s_own_is_refused_until_the_policy_lists_it(
    silo: Path, monkeypatch, capsys
):
    plan, policy = silo / "plan.toml", silo / "policy.toml"
    plan.write_text(edited(PLAN, NO_MODEL, ("[evolve]", "[evolve]\nlocal_parts = true")))
    own = 'environments = ["craft", "maze"]\n[evolve]\nplay = "hints"\n'
    (silo / "silo.toml").write_text(own)
    check = ("policy", "check", str(plan), "--data", str(silo))
    code, out, err = call(monkeypatch, capsys, *check)
    assert (code, out) == (Exit.SERVER, "refused by rule own_parts\n")
    assert "'hints'" in err
    assert str(policy) in err
    policy.unlink()
    code, _, _ = call(monkeypatch, capsys, "policy", "init", "--plan", str(plan), *check[3:])
    assert code == Exit.OK
    assert Policy.load(policy).methods.own_parts == ("hints",)
    assert call(monkeypatch, capsys, *check)[0] == Exit.OK
    (silo / "silo.toml").write_text(f"{own}gate = 'not-worse'\n")
    assert call(monkeypatch, capsys, *check)[0] == Exit.SERVER


def test_a_plan_that_this_silo_cannot_serve_is_about_silo_toml(silo: Path, monkeypatch, capsys):
    (silo / "silo.toml").write_text('environments = ["babyai"]')
    code, out, err = call(
        monkeypatch, capsys,
        "policy", "check", str(silo / "plan.toml"), "--data", str(silo), "--format", "json",
    )  # fmt: skip
    assert code == Exit.SERVER
    assert json.loads(out)["data"]["rule"] == "environments_served"
    assert "the plan is about craft, maze, silo.toml has babyai" in err
    assert str(silo / "silo.toml") in json.loads(out)["next_step"]


def test_an_environment_of_the_plan_that_this_silo_lacks_is_said_here(
    silo: Path, monkeypatch, capsys
):
    given = ("policy", "check", str(silo / "plan.toml"), "--data", str(silo))
    code, out, _ = call(monkeypatch, capsys, *given)
    assert code == Exit.OK
    assert "this silo has no" not in out
    (silo / "silo.toml").write_text('environments = ["craft"]')
    code, out, _ = call(monkeypatch, capsys, *given)
    assert code == Exit.OK
    assert "this silo has no maze, which the plan names" in out
    code, out, _ = call(monkeypatch, capsys, *given, "--format", "json")
    assert json.loads(out)["data"]["environments_absent"] == ["maze"]


def test_what_a_command_logs_is_not_on_stdout(capsys):
    before = structlog.is_configured()
    with answering(Format.JSON):
        structlog.get_logger("silo_agent").info("hardware")
    out, err = capsys.readouterr()
    assert out == ""
    assert '"event": "hardware"' in err
    assert structlog.is_configured() == before


def test_the_hardware_that_a_plan_is_fitted_to_is_said_once(tmp_path: Path, monkeypatch, capsys):
    """In the answer; the daemon logs it too."""
    base = ROOT / "lab" / "base_model"
    (tmp_path / "silo.toml").write_text(f'base_model = "{base}"\nenvironments = ["craft"]\n')
    plan = tmp_path / "plan.toml"
    text = (ROOT / "deploy" / "examples" / "plan-record-local.toml").read_text()
    plan.write_text(text.replace("0" * 64, SiloConfig.load(tmp_path).base_sha256().hex()))
    given = ("--data", str(tmp_path))
    code, _, err = call(monkeypatch, capsys, "policy", "init", "--plan", str(plan), *given)
    assert code == Exit.OK
    assert f"next: chorale-silo policy check {plan} --data {tmp_path}" in err
    code, out, err = call(monkeypatch, capsys, "policy", "check", str(plan), *given)
    assert code == Exit.OK
    assert "on this machine: " in out
    assert "hardware" not in err


def test_status_of_a_silo_that_has_not_joined(silo: Path, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo), "--format", "json")
    data = json.loads(out)["data"]
    assert code == Exit.OK
    assert (data["silo_id"], data["daemon"]) == (None, "not running")
    assert data["base_sha256"] == "00" * 32
    assert data["families"] == ["craft", "maze"]
    assert [(row["unit"], row["epsilon_left"]) for row in data["budget"]] == [
        ("silo", 50.0),
        ("task", 40.0),
    ]
    _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
    assert "not joined yet" in out
    assert "epsilon for each task: 0 spent (zero-out adjacency), 40 left of 40" in out


def test_status_shows_a_policy_or_a_ledger_that_cannot_be_used_as_a_problem(
    silo: Path, monkeypatch, capsys
):
    (silo / "privacy.ledger").write_bytes(b"\0" * 64)
    code, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
    assert code == Exit.OK
    assert "problem: a ledger header is damaged at byte 0" in out
    (silo / "policy.toml").write_text("[privacy]\nepsilon_cap = 8.0")
    code, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo), "--format", "json")
    assert code == Exit.OK
    assert json.loads(out)["data"]["budget"] == []
    _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
    assert "epsilon_caps = { task" in out


def test_status_finds_a_running_daemon_and_notices_a_dead_one(silo: Path, monkeypatch, capsys):
    store = LocalStore(silo)
    store.set_newest_roster_epoch(7)
    store.set_chain_head(
        "run-1",
        ChainHead(
            round=2, step=0, position=2, adapter_sha256=bytes([1]) * 32, record_sha256=bytes(32)
        ),
    )
    store.append_round({"run": "run-1", "round": 1})
    probes = Probes(
        listen="127.0.0.1:0",
        registry=CollectorRegistry(),
        checks={},
        address_file=silo / ADDRESS_FILE,
    )
    probes.start()
    address = probes.address
    try:
        _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo), "--format", "json")
        _, text, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
    finally:
        probes.close()
    data = json.loads(out)["data"]
    assert (data["daemon"], data["probes"], data["roster_epoch"]) == ("ready", address, 7)
    assert data["runs"] == [
        {
            "run": "run-1",
            "round": 2,
            "adapter_sha256": "01" * 32,
            "local_rounds": 1,
            "judged": [],
            "recommended": [],
        }
    ]
    assert "run-1: adopted round 2" in text
    # A daemon that was killed leaves its address behind.
    (silo / ADDRESS_FILE).write_text(address)
    _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo), "--format", "json")
    assert json.loads(out)["data"]["daemon"] == "not running"


def test_an_adapter_of_another_rank_is_a_wrong_argument(silo: Path, monkeypatch, capsys):
    adapter = silo / "other.safetensors"
    rank = read_plan((silo / "plan.toml").read_bytes()).model.lora_rank + 1
    layer = "base_model.model.layers.0.proj"
    factors = {"lora_A.weight": (rank, 32), "lora_B.weight": (32, rank)}
    adapter.write_bytes(
        encode_adapter(
            {f"{layer}.{name}": np.zeros(shape, np.float32) for name, shape in factors.items()}
        )
    )
    plan, data = str(silo / "plan.toml"), ("--data", str(silo), "--format", "json")
    for words in (
        ("alone", plan, "--adapter", str(adapter), "--out", str(silo / "out")),
        ("replay", plan, "--before", str(adapter), "--after", str(adapter)),
    ):
        code, out, err = call(monkeypatch, capsys, *words, *data)
        assert (code, json.loads(out)["error_code"]) == (Exit.ARGUMENTS, "plan")
        assert f"has rank {rank}" in json.loads(out)["message"]
        assert "Traceback" not in err
    assert not (silo / "out").exists()


class Daemon:
    """The probes of a daemon that runs, with its figures."""

    def __init__(self, silo: Path, token_file: Path | None = None) -> None:
        self.metrics = SiloMetrics()
        self._probes = Probes(
            listen="127.0.0.1:0",
            registry=self.metrics.registry,
            checks={},
            metrics=MetricsAccess(host="127.0.0.1", encrypted=False, token_file=token_file),
            address_file=silo / ADDRESS_FILE,
        )

    def __enter__(self) -> SiloMetrics:
        self._probes.start()
        return self.metrics

    def __exit__(self, *_raised: object) -> None:
        self._probes.close()


def test_status_says_the_last_contact_and_the_phase(silo: Path, monkeypatch, capsys):
    def said():
        _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
        found = [line for line in out.splitlines() if line.startswith(("coordinator:", "phase:"))]
        _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo), "--format", "json")
        return found, json.loads(out)["data"]

    assert said()[0] == []
    with Daemon(silo) as metrics:
        (line,), data = said()
        assert "no answer since the daemon started" in line
        assert (data["contact_unix_s"], data["phase"]) == (0, "idle")
        at = time.time() - 5
        metrics.coordinator_contact.set(at)
        metrics.show_phase("masked_input")
        (line, phase), data = said()
        assert line.startswith("coordinator: answered ")
        assert "doctor" not in line
        assert phase == "phase: masked_input"
        assert (data["contact_unix_s"], data["phase"]) == (
            pytest.approx(at, abs=0.01),
            "masked_input",
        )
        metrics.coordinator_contact.set(at - 300)
        assert said()[0][0].endswith("; chorale-silo doctor says why")


def test_status_reads_what_a_token_guards_and_says_what_it_may_not(silo: Path, monkeypatch, capsys):
    token = silo / "probes.token"
    token.write_text("a token of sixteen letters or more\n")
    with Daemon(silo, token):
        _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
        assert "coordinator: not known" in out
        text = (silo / "silo.toml").read_text()
        (silo / "silo.toml").write_text(f'probes_token_file = "probes.token"\n{text}')
        _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
        assert "coordinator: no answer since the daemon started" in out


def test_an_invite_that_is_none_is_a_wrong_argument(tmp_path: Path, monkeypatch, capsys):
    code, out, _ = call(
        monkeypatch, capsys, "join", "hello", "--data", str(tmp_path / "new"), "--format", "json"
    )
    assert code == Exit.ARGUMENTS
    assert json.loads(out)["error_code"] == "invite_malformed"
    assert not (tmp_path / "new" / "silo.toml").exists()


def test_joining_writes_starters_that_load_and_keeps_what_is_there(
    tmp_path: Path, monkeypatch, capsys
):
    joined = SimpleNamespace(federation="oncology", silo_id="hospital-a")
    calls = []

    def join(invite: str, data_dir: Path, **_kwargs) -> SimpleNamespace:
        calls.append((invite, data_dir))
        data_dir.mkdir(exist_ok=True)
        return joined

    monkeypatch.setattr("silo_agent.identity.join.join", join)
    monkeypatch.chdir(tmp_path)
    Path("base").mkdir()
    data = tmp_path / "silo"
    arguments = ("join", "chorale1.x", "--data", str(data))
    code, out, err = call(monkeypatch, capsys, *arguments, "--base-model", "base")
    assert code == Exit.OK
    assert out.startswith("joined oncology as hospital-a")
    assert f"wrote {data / 'policy.toml'}" in out
    assert err.startswith("next: ")
    assert SiloConfig.load(data).base_model == tmp_path / "base"
    assert Policy.load(data / "policy.toml") == Policy.parse(DENY_ALL)
    (data / "policy.toml").write_text("# mine")
    code, out, _ = call(monkeypatch, capsys, *arguments, "--format", "json")
    assert json.loads(out)["data"]["wrote_policy_toml"] is False
    assert (data / "policy.toml").read_text() == "# mine"
    assert calls == [("chorale1.x", data)] * 2


def test_run_hands_the_configuration_to_the_daemon(silo: Path, monkeypatch, capsys):
    seen = []

    def run(config: SiloConfig) -> None:
        seen.append(config)
        structlog.get_logger("test").info("silo_started", silo="silo-a")

    monkeypatch.setattr("silo_agent.daemon.process.run", run)
    try:
        code, out, err = call(monkeypatch, capsys, "run", "--data", str(silo), "--format", "json")
    finally:
        structlog.reset_defaults()
    assert code == Exit.OK
    assert seen == [SiloConfig.load(silo)]
    # The log is on stderr, so that stdout stays one envelope.
    assert json.loads(out)["data"] == {"stopped": True}
    assert json.loads(err.splitlines()[0])["event"] == "silo_started"
