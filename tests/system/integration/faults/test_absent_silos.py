"""``chorale run plan`` and ``run start`` with a roster whose silos are revoked, or not there."""

from __future__ import annotations

import json
import time

import pytest

from ops.cli.envelope import run_app
from server.cli.main import app
from server.states import RunState
from tests.kit.paths import ROOT
from tests.kit.processes.server_harness import Coordinator
from tests.kit.secagg.secagg_samples import make_roster, signed_roster
from tests.kit.server.store_samples import enrol, make_run
from tests.kit.server.world_plan import INITIAL

pytestmark = pytest.mark.xdist_group("absent_silos")

PLAN = ROOT / "deploy" / "examples" / "plan-constant.toml"


@pytest.fixture
def coordinator(tmp_path):
    """Four silos in the roster; three open a round, and none was ever heard of."""
    running = Coordinator(tmp_path)
    roster = signed_roster(make_roster(4, 1))
    running.store.rosters.publish(roster, at_unix_s=1)
    names = roster.roster.silo_ids
    enrol(running.store, names, certificate_expiry_unix_s=int(time.time()) + 86400)
    yield running
    running.close()


@pytest.fixture
def chorale(coordinator, monkeypatch, capsys):
    """Run a command here; exit code, envelope and prose."""

    def call(*arguments):
        line = ["chorale", *map(str, arguments)]
        line += ["--data", str(coordinator.data_dir), "--format", "json"]
        monkeypatch.setattr("sys.argv", line)
        code = 0
        try:
            run_app(app)
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return code, json.loads(captured.out), captured.err

    return call


def test_a_start_without_silos_is_refused_until_they_call_or_the_admin_waits(
    coordinator, chorale, tmp_path
):
    adapter = tmp_path / "initial.safetensors"
    adapter.write_bytes(INITIAL)
    start = ("run", "start", PLAN, "--adapter", adapter)
    code, answer, _ = chorale(*start)
    assert (code, answer["error_code"]) == (4, "silos_silent")
    assert "only 0 were heard of within 5 minutes, not silo-000" in answer["message"]
    assert "--await-silos" in answer["message"]
    assert coordinator.conductor.started == []
    assert chorale(*start, "--await-silos")[0] == 0
    now = time.time()
    coordinator.store.silos.touch({"silo-000": now, "silo-001": now, "silo-002": now - 301})
    code, answer, _ = chorale(*start)
    assert code == 4
    assert "only 2 were heard of within 5 minutes, not silo-002, silo-003" in answer["message"]
    coordinator.store.silos.touch({"silo-002": now})
    assert chorale(*start)[0] == 0
    assert len(coordinator.conductor.started) == 2


def test_a_plan_says_who_is_missing(coordinator, chorale):
    arguments = ("run", "plan", PLAN, "--dimension", 100)
    code, _, prose = chorale(*arguments)
    # Plans are made before the silos run.
    assert code == 0
    assert "note: silos: a round opens with 3 ready silos but only 0 were heard of" in prose
    coordinator.store.silos.revoke("silo-001")
    coordinator.store.silos.leave("silo-002")
    code, answer, prose = chorale(*arguments)
    assert (code, answer["error_code"]) == (4, "plan_refused")
    assert "only 2 of 4 may take part (silo-001 is revoked, silo-002 is left)" in answer["message"]
    # Of a roster that is only thought of there is nobody to ask.
    assert chorale(*arguments, "--silos", 4, "--colluding", 1)[0] == 0


def test_an_environment_that_no_silo_had_is_warned_of(coordinator, chorale, tmp_path):
    plan = tmp_path / "plan.toml"
    local = (PLAN.parent / "plan-record-local.toml").read_text().replace("n_min = 7", "n_min = 3")
    local = local.replace("lab/base_model", "elsewhere").replace("0" * 64, "ab" * 32)
    plan.write_text(local.replace('"craft"', '"craft", "maize"'))
    asked = ("run", "plan", plan, "--dimension", 3072)
    silos = coordinator.store.silos

    def warnings(*more):
        code, answer, prose = chorale(*asked, *more)
        assert code == 0, prose
        return answer["data"]["warnings"]

    for silo in ("silo-000", "silo-001", "silo-002"):
        silos.set_families(silo, ("craft", "maze"))
    # The fourth was never ready, so nobody knows what it has.
    assert warnings() == []
    silos.set_families("silo-003", ("craft",))
    (warning,) = warnings()
    assert "no silo of the roster had 'maize' when it was last ready" in warning
    assert "they had craft, maze" in warning
    # Of a roster that is only thought of nothing is known.
    assert warnings("--silos", 4, "--colluding", 1) == []


def test_who_sits_out_is_shown_and_let_in_again(coordinator, chorale):
    store = coordinator.store
    run = make_run(store)
    store.dropouts.add(run.run_id, "silo-001", 2)
    store.dropouts.sit_out(run.run_id, "silo-001", until_round=7)

    def states():
        return [silo["state"] for silo in chorale("silo", "list")[1]["data"]["silos"]]

    assert states() == ["rostered", "sitting_out", "rostered", "rostered"]
    code, answer, prose = chorale("silo", "show", "silo-001")
    assert (code, answer["data"]["silo"]["state"]) == (0, "sitting_out")
    assert "to end it: chorale silo reinstate silo-001" in prose
    assert chorale("silo", "reinstate", "silo-001")[0] == 0
    assert states() == ["rostered"] * 4
    code, answer, _ = chorale("silo", "reinstate", "silo-001")
    assert (code, answer["error_code"]) == (1, "silo_standing")
    # Of a run that is over nobody sits out.
    store.dropouts.sit_out(run.run_id, "silo-001", until_round=7)
    store.runs.set_state(run.run_id, RunState.FAILED)
    assert states() == ["rostered"] * 4
