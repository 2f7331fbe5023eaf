import json

import pytest
from typer.testing import CliRunner

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from lab.cli.main import app
from lab.experiment.config import load_experiment
from lab.experiment.errors import JudgeError
from lab.experiment.tasks.flags import Flag
from lab.experiment.tasks.reference import Asked, play_base
from tests.kit.lab.experiment_samples import setting, write
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
HEAD = f"""
name = "small"
base = "{BASE}"
rounds = 1
seeds = [0]

[evolve]
max_new_tokens = 8

[[silo]]
name = "shop"
environments = ["craft"]
count = 5
"""
TABLE = '[partition]\nkind = "{}"\npool = 64\nlength = 12\n{}\n'
PREFERENCE = TABLE.format("preference", "omega = 0.25")
HARDNESS = TABLE.format(
    "hardness", 'xi_hard = 4\nsolved_shares = [0.5, 0.75, 1]\nsolved = "flags.jsonl"'
)
ROW = setting("x", "fedse")
TRAIN = make("craft").task_ids(Split.TRAIN)


def invoke(*arguments):
    done = CliRunner().invoke(app, ["partition", *map(str, arguments)])
    return done.exit_code, done.output


def data(*arguments):
    code, output = invoke(*arguments, "--format", "json")
    assert code == 0, output
    return json.loads(output.splitlines()[-1])["data"]


def run_of(directory, text=HEAD + ROW):
    loaded = load_experiment(write(directory, text))
    (run,) = loaded.runs(base_dir=BASE, base_sha256="0" * 64)
    return run


def played(run, **asked):
    return play_base(run, Asked(**asked), say=lambda _: None)


def test_flags_are_of_the_pool_of_the_file_and_hardness_deals_by_them(tmp_path):
    file = write(tmp_path, HEAD + HARDNESS + ROW)
    before, said = invoke("show", file)
    assert before == 1
    assert "chorale-lab partition flags" in said
    out = tmp_path / "flags.jsonl"
    made = data("flags", file, "--out", out)
    found = [Flag.model_validate_json(line) for line in out.read_text().splitlines()]
    assert [flag.task_id for flag in found] == list(TRAIN[:64])
    assert (made["tasks"], made["solved"]) == (64, sum(flag.solved for flag in found))
    # This base solves most of craft greedily, and not all of it.
    assert 32 < made["solved"] < 64
    (shown,) = data("show", file, "--seeds", 3)["partitions"]
    assert shown["table"]["solved_sha256"] == made["sha256"]
    assert [one["name"] for one in shown["measures"]] == ["preference", "coverage", "hardness"]
    again, said = invoke("flags", file, "--out", out)
    assert again == 4
    assert "is there already" in said


def test_the_dispersion_is_shown_beside_what_is_expected(tmp_path):
    text = HEAD + PREFERENCE + ROW
    text += setting("y", "central_evolution") + setting(
        "z", "fedse", "partition = { omega = 0.75 }"
    )
    file = write(tmp_path, text)
    near, far = data("show", file, "--seeds", 10)["partitions"]
    assert (near["settings"], far["settings"]) == (["x", "y"], ["z"])
    for shown, omega in ((near, 0.25), (far, 0.75)):
        types, amounts = shown["measures"]
        spread = 1 - 1 / 16
        assert types["formula"] == pytest.approx(omega * spread)
        assert types["expected"] == pytest.approx((omega + (1 - omega) / 12) * spread * 0.8)
        # Four tasks of a type: many are moved, which keeps silos more alike than they should be.
        assert 0 < types["measured"] < 1.2 * types["expected"]
        assert types["standard_error"] > 0
        assert (amounts["expected"], amounts["mean"]) == (0, 0)
        assert shown["sizes"] == [12] * 5
    assert far["moved"] > near["moved"]
    code, text = invoke("show", file, "--seeds", 1)
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "x, y: preference of craft, omega = 0.25"
    assert " ".join(lines[2].split()) == "dispersion formula expected seed 42 mean of 1 seeds"
    assert " ".join(lines[4].split()) == "coverage 0.0000 0.0000 0.0000 0.0000"


def test_a_target_has_its_dial_or_the_range_that_there_is(tmp_path):
    file = write(tmp_path, HEAD + PREFERENCE + ROW)
    first = data("show", file, "--seeds", 1, "--target", "preference=0.5")
    omega = first["partitions"][0]["dials"]["preference"]
    turned = write(tmp_path, HEAD + PREFERENCE.replace("0.25", str(omega)) + ROW)
    (shown,) = data("show", turned, "--seeds", 1)["partitions"]
    assert shown["measures"][0]["expected"] == pytest.approx(0.5)
    _, said = invoke("show", file, "--seeds", 1, "--target", "preference=0.5")
    assert f"the target of preference is expected at omega = {omega:.6g}" in said
    for target, code, says in (
        ("preference=0.8", 1, "reaches what lies between 0.0625 and 0.75, not 0.8"),
        ("preference=nan", 1, "not nan"),
        ("coverage=0.1", 1, "kind 'preference' has no dial that sets 'coverage'"),
        ("preference=much", 4, "--target takes MEASURE=VALUE"),
        ("types=0.1", 4, "--target takes MEASURE=VALUE"),
    ):
        found, said = invoke("show", file, "--target", target)
        assert (found, says in said) == (code, True), said


def test_what_the_commands_cannot_do_is_said(tmp_path):
    file = write(tmp_path, HEAD + ROW)
    out = tmp_path / "flags.jsonl"
    for arguments, code, says in (
        (("show", file), 1, "has no partition"),
        (("flags", file, "--out", out), 4, "--pool: the file has no partition"),
        (("flags", file, "--out", out, "--pool", 4, "--tries", 2), 4, "all the same"),
    ):
        found, said = invoke(*arguments)
        assert (found, says in said) == (code, True), said
    assert not out.exists()


def test_a_task_is_played_alike_whatever_the_pool_and_the_seed_decides(tmp_path):
    run = run_of(tmp_path)
    asked = {"tries": 2, "temperature": 1.0, "threshold": 1.0}
    few = played(run, pool=24, **asked)
    assert played(run, pool=40, **asked)[:24] == few
    other = played(run.model_copy(update={"seed": 1}), pool=24, **asked)
    assert other != few
    # Half of the tries is enough, or all of them are needed.
    easy = played(run, pool=24, **{**asked, "threshold": 0.5})
    assert {f.task_id for f in few if f.solved} < {f.task_id for f in easy if f.solved}


def test_an_episode_that_is_dropped_is_not_a_task_that_is_unsolved(tmp_path, monkeypatch):
    from evolution.envs.builtin.craft import Craft

    run = run_of(tmp_path)
    reset = Craft.reset

    def fails(self, task_id):
        if task_id == TRAIN[3]:
            raise OSError("gone")
        return reset(self, task_id)

    monkeypatch.setattr(Craft, "reset", fails)
    with pytest.raises(JudgeError, match="1 episodes of 'craft' were dropped"):
        played(run, pool=8)
    assert len(played(run, pool=3)) == 3
    with pytest.raises(JudgeError, match="has 1008000 training tasks, and a pool of 1008001"):
        played(run, pool=1_008_001)
