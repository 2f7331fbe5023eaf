"""What adapters are judged on: dealt to purposes, named by a digest, played, and written down."""

import hashlib
import json
from collections import Counter

import pytest
from typer.testing import CliRunner

import lab.experiment.judge
from evolution.envs.catalogue import make
from lab.cli.main import app
from lab.experiment.config import load_experiment
from lab.experiment.errors import ExperimentFileError
from lab.experiment.single_run import play_run
from lab.experiment.tasks.panels import (
    LOOKED_AT,
    PURPOSES,
    Opened,
    Panel,
    judged_ids,
    panels_of,
)
from lab.report.lines import parse_line
from tests.kit.lab.experiment_samples import HEAD, SILOS, runs, setting, silo, write
from tests.kit.paths import ROOT

FIRST_HELD_OUT = 2 * 1_008_000


def purposed(purpose, held_out=32):
    told = HEAD.replace("held_out = 16", f'held_out = {held_out}\npurpose = "{purpose}"')
    return told.replace("held_out_other = 8", "held_out_other = 4")


def resolved(tmp_path, purpose, *, environment="craft", held_out=32, extra=""):
    who = "".join(silo(k, environment=environment, demonstrations=0, count=1) for k in (0,))
    who += silo(0, environment=environment, demonstrations=0, count=1).replace("silo-0", "other")
    text = purposed(purpose, held_out) + who + setting("one", "pretrained", extra)
    loaded = load_experiment(write(tmp_path, text))
    return loaded.runs(base_dir=tmp_path, base_sha256="")[0]


def test_purposes_share_no_task(tmp_path):
    """In the market many ids are one wish, so ids alone would not keep purposes apart."""
    for environment in ("craft", "market"):
        panels = {}
        for purpose in PURPOSES:
            (panels[purpose],) = panels_of(resolved(tmp_path, purpose, environment=environment))
            assert panels[purpose].purpose == purpose
            assert panels[purpose].distinct == len(panels[purpose].opened) == 32
        ids = [one.task_id for panel in panels.values() for one in panel.opened]
        openings = {one.observation for panel in panels.values() for one in panel.opened}
        assert len(set(ids)) == len(openings) == 3 * 32
        # Nothing that files without a purpose judge on.
        assert min(ids) >= FIRST_HELD_OUT + LOOKED_AT


def test_tasks_that_open_alike_are_told_apart_by_how_they_are_solved(tmp_path):
    """Desk asks the same question about other records: 128 tasks, of which some open alike."""
    solved = {}
    for purpose in ("tuning", "reporting"):
        (panel,) = panels_of(resolved(tmp_path, purpose, environment="desk", held_out=128))
        assert panel.distinct < 128
        desk = make("desk")
        for one in panel.opened:
            key = one.instruction, one.observation, tuple(desk.solve(one.task_id))
            assert solved.setdefault(key, one.task_id) == one.task_id
    assert len(solved) == 2 * 128


def test_each_purpose_has_a_third_of_what_there_is(tmp_path):
    """64 wishes of a category, dealt in threes: 21 or 22 for each purpose."""
    for purpose in PURPOSES:
        run = resolved(tmp_path, purpose, environment="market", held_out=160)
        assert len(judged_ids(run, "market")) == 160


def test_labels_have_equal_parts_and_a_shorter_panel_is_a_prefix(tmp_path):
    long, short = (
        judged_ids(resolved(tmp_path, "reporting", environment="market", held_out=n), "market")
        for n in (40, 12)
    )
    labels = [make("market").task_label(task_id) for task_id in long]
    assert set(Counter(labels).values()) == {5}
    assert long[:12] == short


def test_a_panel_depends_on_environment_and_purpose_alone(tmp_path):
    one = resolved(tmp_path, "choosing", environment="market")
    other = resolved(
        tmp_path, "choosing", environment="market",
        extra='variants = { kind = "rank-wrapper", descriptor = true }',
    ).model_copy(update={"seed": 77})  # fmt: skip
    assert judged_ids(one, "market") == judged_ids(other, "market")


def test_without_a_purpose_it_is_what_it_was(tmp_path):
    """The panel of docs/experiments/fedagent.md, by the formula that stands there."""
    path = ROOT / "experiments" / "fedagent-market.toml"
    run = load_experiment(path).runs(base_dir=path.parent, base_sha256="")[0]
    (panel,) = panels_of(run)
    digest = hashlib.sha256()
    for one in panel.opened:
        digest.update(f"{one.task_id} {one.observation}\n".encode())
    assert digest.hexdigest() in (ROOT / "docs" / "experiments" / "fedagent.md").read_text()
    assert [one.task_id for one in panel.opened] == list(
        range(FIRST_HELD_OUT, FIRST_HELD_OUT + 256)
    )


def test_a_digest_is_of_ids_openings_and_environment():
    first = Opened(task_id=1, instruction="do", observation="a b")
    panel = Panel(environment="craft", purpose=None, opened=(first,))
    others = [
        Panel(environment="maze", purpose=None, opened=(first,)),
        Panel(environment="craft", purpose=None, opened=(first, first)),
    ]
    for changes in ((2, "do", "a b"), (1, "do a", "b"), (1, "do", "a c")):
        opened = Opened(task_id=changes[0], instruction=changes[1], observation=changes[2])
        others.append(Panel(environment="craft", purpose=None, opened=(opened,)))
    assert len({panel.sha256, *(other.sha256 for other in others)}) == 1 + len(others)
    named = Panel(environment="craft", purpose="reporting", opened=(first,))
    assert named.sha256 == panel.sha256, "the digest is of the tasks, whatever they are for"


def test_a_purpose_is_part_of_a_run_and_its_absence_of_none(tmp_path):
    one = resolved(tmp_path, "reporting")
    assert one.described()["judge"]["purpose"] == "reporting"
    judge = one.judge.model_copy(update={"purpose": None})
    without = one.model_copy(update={"judge": judge})
    assert "purpose" not in without.described()["judge"]
    assert one.sha256 != without.sha256


@pytest.mark.parametrize(
    ("environment", "held_out", "words"),
    [
        ("market", 256, "'market' has too few tasks .* ask for at most 1(60|68)$"),
        ("bandit", 2, "ask for at most [01]$"),
    ],
)
def test_too_few_tasks_are_refused_before_anything_runs(tmp_path, environment, held_out, words):
    with pytest.raises(ExperimentFileError, match=words):
        resolved(tmp_path, "reporting", environment=environment, held_out=held_out)


def test_only_held_out_tasks_have_a_purpose(tmp_path):
    told = purposed("tuning").replace("every = 1", 'split = "pretrain"\nevery = 1', 1)
    with pytest.raises(ExperimentFileError, match="leave one of the two out"):
        load_experiment(write(tmp_path, told + SILOS + setting("one", "pretrained")))


def test_a_run_plays_its_panel_and_says_which(tmp_path, monkeypatch):
    (run,) = runs(tmp_path, purposed("reporting", 8) + SILOS + setting("one", "pretrained"))
    played = []
    really = lab.experiment.judge.run_episodes

    def noted(engine, tasks, **more):
        played.extend(task.task_id for task in tasks)
        return really(engine, tasks, **more)

    monkeypatch.setattr(lab.experiment.judge, "run_episodes", noted)
    (tmp_path / "scratch").mkdir()
    rows = play_run(run, tmp_path / "scratch", progress=lambda *_: None).rows
    (panel,) = panels_of(run)
    assert played[:8] == [one.task_id for one in panel.opened]
    assert rows[-1]["panels"] == {"craft": {"tasks": 8, "sha256": panel.sha256}}
    read = parse_line(json.dumps(rows[-1]).encode())
    assert read.panels["craft"].sha256 == panel.sha256
    assert read.config_sha256 == run.sha256


def test_the_command_says_which_tasks(tmp_path):
    path = write(tmp_path, purposed("tuning") + SILOS + setting("one", "pretrained"))
    told = CliRunner().invoke(app, ["partition", "judged", str(path), "--format", "json"])
    assert told.exit_code == 0, told.output
    (found,) = json.loads(told.stdout)["data"]["panels"]
    (panel,) = panels_of(load_experiment(path).runs(base_dir=tmp_path, base_sha256="")[0])
    assert found["sha256"] == panel.sha256
    assert found["task_ids"] == [one.task_id for one in panel.opened]
    text = CliRunner().invoke(app, ["partition", "judged", str(path)]).stdout
    assert "craft: 32 tasks, tuning; 32 open differently; judged in one" in text
    assert panel.sha256 in text
    plain = write(tmp_path, HEAD + SILOS + setting("one", "pretrained"))
    text = CliRunner().invoke(app, ["partition", "judged", str(plain)]).stdout
    assert f"task ids {FIRST_HELD_OUT} to {FIRST_HELD_OUT + 15}" in text
