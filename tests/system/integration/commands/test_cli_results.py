"""Every command that succeeds shows its result on stdout, and what it says besides on stderr.

One federation of real processes is founded, runs, is looked at and taken apart, each step typed as
people type it. A command that is not called here is a line in a table, with its reason.

Covered: that stdout has the result and nothing else, for every command; what a shell does with it.
Not covered: what the results say.
"""

import json
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.kit.paths import ROOT
from tests.kit.processes import constant_federation as cf
from tests.kit.processes.commands import BESIDES, LEAVES, PROGRAMS
from tests.kit.processes.server_harness import Coordinator
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("cli_results"), pytest.mark.long]

BASE = ROOT / "lab" / "base_model"
ELSEWHERE = {
    ("chorale", "demo"): "takes minutes: make demo",
    (
        "chorale",
        "audit",
        "explain",
    ): "needs a plan that chooses: tests/server/cli/test_decisions.py",
    ("chorale", "audit", "decisions"): "likewise",
    ("chorale-lab", "replay-decisions"): "likewise",
    ("chorale", "run", "bisect"): "needs a roster for two halves: tests/server/cli/test_bisect.py",
    ("chorale", "report"): "needs a finished demo: tests/lab/demo/test_outcome.py",
    ("chorale-coordinator", "serve"): "a daemon, which has no result",
    ("chorale-silo", "run"): "a daemon, which has no result",
    ("chorale-silo", "diagnose"): "plays and trains: tests/silo_agent/cli/test_diagnose.py",
    ("chorale-silo", "principles", "show"): "needs one: tests/silo_agent/cli/test_principles.py",
    ("chorale-silo", "principles", "edit"): "needs one: tests/silo_agent/cli/test_principles.py",
    ("chorale-silo", "principles", "delete"): "needs one: tests/silo_agent/cli/test_principles.py",
    (
        "chorale-silo",
        "adapter",
        "export",
    ): "needs a choice: tests/silo_agent/local_work/test_chosen_adapter.py",
    ("chorale-silo", "replay"): "needs two adapters of a base model that explores",
    ("chorale-lab", "base", "build"): "makes a model, which takes minutes",
    ("chorale-lab", "base", "import"): "tests/lab/base/test_pretrained.py",
    ("chorale-lab", "base", "smollm2"): "fetches a model: tests/lab/base/test_pretrained.py",
    ("chorale-lab", "diagnose"): "plays and trains: tests/lab/diagnose/test_command.py",
    ("chorale-lab", "adapter", "merge"): "tests/lab/serving/test_merge.py",
    (
        "chorale-lab",
        "partition",
        "flags",
    ): "plays: tests/lab/experiment/tasks/test_partition_command.py",
    (
        "chorale-lab",
        "partition",
        "show",
    ): "tests/lab/experiment/tasks/test_partition_command.py",
    ("chorale-lab", "partition", "judged"): "tests/lab/experiment/tasks/test_panels.py",
    ("chorale-lab", "panel", "chosen"): "needs results: tests/lab/report/test_panel.py",
    ("chorale-lab", "panel", "report"): "needs results: tests/lab/report/test_panel.py",
    ("chorale-lab", "power"): "needs results: tests/lab/evidence/test_power.py",
    ("chorale-lab", "register"): "needs a claim: tests/lab/evidence/test_registration.py",
    ("chorale-lab", "report"): "needs an experiment's results: tests/lab/report/test_report.py",
}
EPISODE = {
    "conversations": [
        {"from": "human", "loss": None, "value": "craft the goal item ."},
        {"from": "gpt", "loss": False, "value": "ok ."},
        {"from": "human", "loss": None, "value": "goal plank ."},
        {"from": "gpt", "loss": True, "value": "craft 1 plank"},
    ],
    "item_id": "textcraft_1",
    "subject": "zoe",
}


@pytest.fixture
def types(monkeypatch, capfd, tmp_path):
    """Type a line; the lines of its result. Knows which commands were typed."""
    monkeypatch.chdir(tmp_path)
    for name in ("CHORALE_DATA", "CHORALE_SILO_DATA"):
        monkeypatch.delenv(name, raising=False)
    typed = set()

    def run(line):
        words = shlex.split(line)
        typed.update(
            leaf.path for leaf in LEAVES if tuple(words[: len(leaf.path)]) == tuple(leaf.path)
        )
        monkeypatch.setattr(sys, "argv", words)
        code = 0
        try:
            import_module(PROGRAMS[words[0]]).main()
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capfd.readouterr()
        assert code == 0, (line, err)
        result = out.splitlines()
        assert result, f"{line} shows no result"
        assert not [one for one in result if one.startswith(BESIDES)], (line, out)
        assert not set(result) & set(err.splitlines()), (line, out, err)
        return result

    run.typed = typed
    return run


def federation_begins(types, loopback):
    at = f"--data {loopback.data_dir}"
    types("chorale root init --dir another-root")
    types("chorale init --host localhost --root-certificate another-root/root.pub --data another")
    fresh = Coordinator(Path("fresh").absolute(), federation=None)
    try:
        types(f"chorale federation create cardiology --data {fresh.data_dir}")
    finally:
        fresh.close()
    types(f"chorale federation show {at}")
    types(f"chorale doctor {at}")
    types("chorale plan new --silos 3 --episodes 80 --epsilon 8 -o first.toml")
    types(f"chorale admin renew {at}")
    (invite,) = types(f"chorale invite {loopback.federation} silo-e --ttl 1h {at}")
    types(f"chorale-silo join {invite} --data {loopback.silo_dir('silo-e')}")
    cf.configure(loopback, "silo-e")
    types(f"chorale roster propose --out next.json {at}")
    for command in ("show", "approve --yes"):
        types(f"chorale-silo roster {command} --data {loopback.silo_dir('silo-a')}")
    types(f"chorale root sign next.json --dir {loopback.root_dir} --yes --out signed.json")
    types(f"chorale roster publish signed.json {at}")
    types(f"chorale roster export --out in-force.json {at}")
    names = [line.split()[0] for line in types(f"chorale silo list {at}")]
    assert names == list(cf.FIVE)


def run_is_watched(types, loopback):
    at = f"--data {loopback.data_dir}"
    plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=2, phase_deadline_s=40))
    cf.await_heard(loopback)
    types(f"chorale run plan {plan} --adapter {adapter} {at}")
    asked = types(f"chorale run ask {plan} {at}")
    assert [line.split()[1] for line in asked[:4]] == ["accept"] * 4
    (started,) = types(f"chorale run start {plan} --adapter {adapter} {at}")
    run = started.removeprefix("run ")
    ended = types(f"chorale run watch {run} {at}")
    assert ended[0].split()[:2] == [run, "finished"]
    types(f"chorale run show {run} {at}")
    types(f"chorale run credit {run} --out credit.md {at}")
    for command in ("list", f"export {run} -o exported"):
        types(f"chorale adapter {command} {run if command == 'list' else ''} {at}")
    types(f"chorale transcript export {run} 1 --out transcript.json {at}")
    types(f"chorale verify-transcript transcript.json --root-key {loopback.root_dir}/root.pub")
    types(f"chorale budget {at}")
    return run


def run_is_steered(types, loopback):
    at = f"--data {loopback.data_dir}"
    plan, adapter = cf.write_run(
        loopback, cf.plan_toml(rounds=90, phase_deadline_s=40, ready_after_s=1)
    )
    (started,) = types(f"chorale run start {plan} --adapter {adapter} {at}")
    run = started.removeprefix("run ")
    for status in loopback.watch(run):
        if status["run"]["round"] >= 2:
            break
    for resumed in (True, False):
        types(f"chorale run pause {run} {at}")
        until(
            lambda: " paused " in next(x for x in types(f"chorale run list {at}") if run in x),
            "the run is paused",
        )
        if resumed:
            types(f"chorale run resume {run} {at}")
    # No site allows it: once it is resumed the run would fail before anybody could abort it.
    types(f"chorale adapter rollback {run} --to-round 0 {at}")
    types(f"chorale run abort {run} {at}")


def silo_decides(types, loopback, run):
    at = f"--data {loopback.silo_dir('silo-a')}"
    types(f"chorale-silo doctor {at}")
    types(f"chorale-silo policy check {loopback.directory}/plan.toml {at}")
    for command in ("status", "budget", "guard", f"preview {run}", "audit tail", "audit verify"):
        types(f"chorale-silo {command} {at}")
    types(f"chorale-silo budget export spent.json {at}")
    for command in ("facts", "facts set --queue 3 --free-gpu most --for 2h", "facts clear"):
        types(f"chorale-silo {command} {at}")
    types(f"chorale-silo runs {at}")
    heard = loopback.silo("runs", *at.split())["runs"]
    (digest,) = [one["plan_sha256"] for one in heard if one["run"] == run]
    types(f"chorale-silo approve {run} --plan-sha256 {digest} {at}")
    types(f"chorale-silo refuse {run} {at}")
    types(f"chorale-silo verify-transcript transcript.json {at}")
    types(f"chorale-silo audit export --out silo-audit.jsonl {at}")
    types(f"chorale-silo audit heads --out of-coordinator.json {at}")
    types(f"chorale audit heads --out of-silos.json --data {loopback.data_dir}")


def operator_prepares(types, loopback):
    Path("operator").mkdir()
    types("chorale-silo policy init --data operator")
    types("chorale-silo policy init --force --data operator")
    types("chorale-silo deploy systemd --out silo-unit")
    Path("operator/silo.toml").write_text(f'environments = ["craft"]\nbase_model = "{BASE}"')
    Path("expert.jsonl").write_text(json.dumps(EPISODE))
    types("chorale-silo buffer import expert.jsonl --environment craft --data operator")
    types("chorale-silo buffer show --data operator")
    types("chorale-silo buffer delete --subject zoe --data operator")
    types("chorale-silo principles list --data operator")
    at = f"--data {loopback.silo_dir('silo-b')}"
    plan = f"{loopback.directory}/plan.toml --adapter {loopback.directory}/initial.safetensors"
    Path(f"{loopback.directory}/plan.toml").write_text(cf.plan_toml(rounds=1))
    types(f"chorale-silo alone {plan} --out alone {at}")
    types("chorale-silo env try craft --episodes 1 --show --data operator")
    types(f"chorale-lab adapter init {BASE} --out first.safetensors --rank 1")
    types(f"chorale-lab run {ROOT}/experiments/fedse-shards.toml --out lab --check")


def federation_ends(types, loopback):
    at = f"--data {loopback.data_dir}"
    for command in ("suspend", "reinstate", "show"):
        types(f"chorale silo {command} silo-e {at}")
    types(f"chorale-silo leave --wipe --yes --data {loopback.silo_dir('silo-e')}")
    types(f"chorale silo revoke silo-e {at}")
    for command in ("show", "rotate --overlap 1h"):
        types(f"chorale ca {command} {at}")
    for command in ("tail", "verify", "export --out audit.jsonl"):
        types(f"chorale audit {command} {at}")
    types(f"chorale backup --out coordinator.backup {at}")
    types("chorale restore coordinator.backup --data restored")
    for kind in ("compose", "helm", "systemd"):
        types(f"chorale deploy {kind} --out {kind}")


def test_every_command_shows_its_result_on_stdout(types, tmp_path):
    with cf.federation(tmp_path / "federation") as loopback:
        federation_begins(types, loopback)
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        run = run_is_watched(types, loopback)
        run_is_steered(types, loopback)
        silo_decides(types, loopback, run)
        operator_prepares(types, loopback)
        federation_ends(types, loopback)
    paths = {leaf.path for leaf in LEAVES}
    assert set(ELSEWHERE) <= paths
    assert not types.typed & set(ELSEWHERE)
    assert types.typed | set(ELSEWHERE) == paths, paths - types.typed - set(ELSEWHERE)
