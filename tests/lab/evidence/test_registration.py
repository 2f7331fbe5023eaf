"""Registrations: written once, held to before a run, and answered first in a report."""

import json
import re

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from evolution.model.identity import base_sha256
from lab.cli.main import app
from lab.evidence.errors import RegistrationError
from lab.evidence.register import BESIDE_RESULTS, hold_directory, register, require_registered
from lab.evidence.registration import read_draft, read_registration, write_registration
from lab.evidence.verdict_picture import draw_judgement
from lab.evidence.verdicts import Verdict, judged_by
from lab.experiment import runner
from lab.experiment.config import load_experiment
from lab.experiment.rows import run_row
from lab.experiment.runner import Outcome
from lab.experiment.single_run import play_run
from lab.experiment.tasks.panels import panels_of
from lab.report.results import load_results
from tests.kit.lab.experiment_samples import HEAD, SILOS, base, setting, write
from tests.kit.lab.lab_results import eval_line
from tests.kit.paths import ROOT

EXPERIMENT = (
    HEAD.replace("seeds = [0]", "seeds = [1, 2, 3, 4]")
    .replace("held_out = 16", 'held_out = 16\npurpose = "reporting"')
    .replace("[1.0]", "[1.0, 0.0]")
    + SILOS
    + setting("one", "pretrained")
    + setting("two", "pretrained")
    + setting("side", "pretrained")
    + setting("extra", "pretrained")
)
CLAIMS = """
name = "claims"
experiment = "experiment.toml"
seeds = [1, 2, 3]
secondary = ["side"]

[stopping]
rule = "Every seed once; nothing is added after a look."
runs = 6

[[hypothesis]]
name = "better"
setting = "one"
reference = "two"
direction = "above"
target = 0.1

[[hypothesis]]
name = "not-worse-greedy"
setting = "one"
reference = "two"
direction = "above"
target = -0.05
figure = { tasks = "all", temperature = 0.0, round = "last" }
"""


@pytest.fixture
def claims(tmp_path):
    base(tmp_path)
    write(tmp_path, EXPERIMENT)
    path = tmp_path / "claims.toml"
    path.write_text(CLAIMS)
    return path


def runs_of(tmp_path):
    path = tmp_path / "experiment.toml"
    loaded = load_experiment(path)
    made = tmp_path / "base"
    return path, loaded.runs(base_dir=made, base_sha256=base_sha256(made))


def chosen(runs, settings, seeds):
    return [run for run in runs if run.setting in settings and run.seed in seeds]


def test_a_registration_holds_file_runs_and_panels_by_digest(claims, tmp_path):
    made = register(claims)
    path, runs = runs_of(tmp_path)
    (panel,) = panels_of(runs[0])
    assert made.panels["craft"].sha256 == panel.sha256
    assert made.purpose == "reporting"
    assert made.primary == ("one", "two")
    assert {(one.setting, one.seed) for one in made.runs} == {
        (name, seed) for name in ("one", "two", "side") for seed in (1, 2, 3)
    }
    assert all(
        made.sha256_of(run.setting, run.seed) == run.sha256
        for run in chosen(runs, ("one", "side"), (1, 2, 3))
    )
    assert register(claims).digest == made.digest
    claims.write_text(CLAIMS.replace("target = 0.1", "target = 0.05"))
    assert register(claims).digest != made.digest
    path.write_text(EXPERIMENT + "\n# a comment\n")
    assert register(claims).experiment_sha256 != made.experiment_sha256


def test_it_is_written_once_and_a_changed_one_is_refused(claims, tmp_path):
    made, out = register(claims), tmp_path / "claims.json"
    assert write_registration(out, made)
    assert not write_registration(out, made)
    assert read_registration(out) == made
    claims.write_text(CLAIMS.replace("target = 0.1", "target = 0.0"))
    with pytest.raises(RegistrationError, match="holds another registration"):
        write_registration(out, register(claims))
    assert read_registration(out) == made
    kept = json.loads(out.read_text())
    for change in (
        lambda content: content["registration"]["hypothesis"][0].update(target=0.0),
        lambda content: content["registration"].update(seeds=[1, 2, 4]),
        lambda content: content.update(digest="0" * 64),
        lambda content: content.update(note="added"),
    ):
        changed = json.loads(json.dumps(kept))
        change(changed)
        out.write_text(json.dumps(changed))
        with pytest.raises(RegistrationError, match="its digest is not that of its content"):
            read_registration(out)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"digest": 1}', '{"digest": "", "digest": ""}', "[" * 100_000]
)
def test_what_is_no_registration_is_refused(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RegistrationError, match="no registration"):
        read_registration(path)
    path.write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(RegistrationError, match="larger than"):
        read_registration(path)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("runs = 6", "runs = 5", "2 settings at 3 seeds are 6 runs"),
        ('reference = "two"', 'reference = "one"', "compares a setting with itself"),
        ('secondary = ["side"]', 'secondary = ["two"]', "a hypothesis is about 'two'"),
        ('name = "better"', 'name = "not-worse-greedy"', "hypothesis: one of them appears twice"),
        ("seeds = [1, 2, 3]", "seeds = [1, 1, 3]", "seeds: one of them appears twice"),
        ('direction = "above"', 'direction = "up"', "direction"),
        ("target = 0.1", "target = 10.0", "target"),
        ("target = 0.1", "taget = 0.1", "taget: unknown key"),
        ('rule = "Every', 'rule = ""\nwhy = "Every', "rule"),
    ],
)
def test_a_wrong_draft_is_refused_with_its_key(claims, before, after, words):
    claims.write_text(CLAIMS.replace(before, after, 1))
    with pytest.raises(RegistrationError, match=re.escape(words)):
        read_draft(claims)


def test_what_the_experiment_has_not_is_refused(claims):
    for before, after, words in (
        ('setting = "one"', 'setting = "won"', "has no setting 'won'"),
        ("seeds = [1, 2, 3]", "seeds = [1, 2, 9]", "has no seed 9"),
        ("temperature = 0.0", "temperature = 0.5", "is not judged at temperature 0.5"),
    ):
        claims.write_text(CLAIMS.replace(before, after))
        with pytest.raises(RegistrationError, match=words):
            register(claims)


def test_a_run_that_departs_is_refused(claims, tmp_path):
    made = register(claims)
    path, runs = runs_of(tmp_path)
    content, first = path.read_bytes(), chosen(runs, ("one",), (1,))
    require_registered(made, content, chosen(runs, ("one", "two", "side"), (1, 2, 3)))
    for changed, some, words in (
        (content + b"\n", first, "the experiment's file has the digest"),
        (content, chosen(runs, ("extra",), (1,)), "'extra' is in no hypothesis and not secondary"),
        (content, chosen(runs, ("one",), (4,)), "seed 4 was not registered"),
        (
            content,
            [run.model_copy(update={"base_sha256": "0" * 64}) for run in first],
            "one at seed 1 has other values than were registered",
        ),
    ):
        with pytest.raises(RegistrationError, match=words):
            require_registered(made, changed, some)
    other = made.model_copy(
        update={"panels": {"craft": made.panels["craft"].model_copy(update={"sha256": "0" * 64})}}
    )
    with pytest.raises(RegistrationError, match="the panel of craft is"):
        require_registered(other, content, first)


def test_a_directory_is_held_from_its_first_run_on(claims, tmp_path):
    made, out = register(claims), tmp_path / "out"
    out.mkdir()
    hold_directory(out, None, finished=3)
    with pytest.raises(RegistrationError, match="3 runs were finished before"):
        hold_directory(out, made, finished=3)
    hold_directory(out, made, finished=0)
    hold_directory(out, made, finished=2)
    with pytest.raises(RegistrationError, match="give --registration"):
        hold_directory(out, None, finished=2)
    claims.write_text(CLAIMS.replace("target = 0.1", "target = 0.0"))
    with pytest.raises(RegistrationError, match="held to another registration"):
        hold_directory(out, register(claims), finished=2)


def rows_of(run, wins, *, greedy=None, panels=None):
    """A finished run whose adapter solves every other task, and ``wins`` more of sixteen."""
    if panels is None:
        panels = {panel.environment: panel.described for panel in panels_of(run)}
    lines = []
    for temperature, solved in ((1.0, 4 + wins), (0.0, 4 + (wins if greedy is None else greedy))):
        outcomes = "1" * solved + "0" * (16 - solved)
        lines.append(
            eval_line(
                run.setting, run.seed, outcomes, round=0, temperature=temperature,
                method=run.method, label="plank",
            )
        )  # fmt: skip
    last = run_row(run, wall_s=1.0, episodes=0, adapter_sha256="", versions={}, panels=panels)
    return [*lines, last]


def kept(directory, rows):
    directory.mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for part in rows for row in part)
    (directory / "results.jsonl").write_text(text)
    return directory


def won(tmp_path, one=(8, 9, 8), **more):
    _, runs = runs_of(tmp_path)
    firsts = chosen(runs, ("one",), (1, 2, 3))
    seconds = chosen(runs, ("two",), (1, 2, 3))
    panels = {panel.environment: panel.described for panel in panels_of(runs[0])}
    return [
        *[rows_of(run, wins, panels=panels, **more) for run, wins in zip(firsts, one, strict=True)],
        *[rows_of(run, 0, panels=panels) for run in seconds],
    ], runs


def test_verdicts_of_registered_runs(claims, tmp_path):
    made = register(claims)
    rows, _ = won(tmp_path, greedy=0)
    told = judged_by(made, load_results([kept(tmp_path / "out", rows)]))
    better, greedy = told.found
    assert better.verdict is Verdict.REACHED
    assert better.difference.seeds == (1, 2, 3)
    assert better.difference.spread.mean == pytest.approx(25 / 48)
    # x̄ − 0.1 over s/√3, two degrees; twice for Holm, for greedy has no spread and so p = 1.
    assert better.adjusted == pytest.approx(2 * better.p_value)
    assert better.p_value == pytest.approx(0.00244, abs=2e-4)
    assert (greedy.verdict, greedy.p_value) == (Verdict.MISSED, 1.0)
    assert (told.counted, told.planned, told.deviations) == (6, 6, ())


def test_a_picture_shows_each_difference_beside_its_target(claims, tmp_path):
    """A row for each hypothesis, of what ran and of what did not."""
    rows, _ = won(tmp_path, greedy=0)
    made = register(claims)
    pixels = {}
    for name, of in (("all", rows), ("one seed less", rows[1:]), ("no runs of two", rows[:3])):
        results = load_results([kept(tmp_path / name, of)])
        drawn = tmp_path / "pictures" / f"{name}.png"
        draw_judgement(judged_by(made, results), drawn)
        pixels[name] = imread(drawn)
    dots = {name: int(coloured(image).sum()) for name, image in pixels.items()}
    assert dots["all"] > dots["one seed less"] > dots["no runs of two"] == 0


def coloured(image):
    """Where a picture is neither black, white nor grey."""
    return image[..., :3].max(axis=-1) - image[..., :3].min(axis=-1) > 0.2


def test_a_mean_beyond_the_target_is_not_enough(claims, tmp_path):
    made = register(claims)
    rows, _ = won(tmp_path, one=(0, 12, 4))
    better = judged_by(made, load_results([kept(tmp_path / "out", rows)])).found[0]
    assert better.difference.spread.mean > 0.1
    assert better.verdict is Verdict.MISSED


def test_what_departs_is_named_and_counts_for_nothing(claims, tmp_path):
    made = register(claims)
    rows, runs = won(tmp_path)
    panels = {panel.environment: panel.described for panel in panels_of(runs[0])}
    (fourth,) = chosen(runs, ("one",), (4,))
    (extra,) = chosen(runs, ("extra",), (1,))
    rows += [rows_of(fourth, 12, panels=panels), rows_of(extra, 0, panels=panels)]
    told = judged_by(made, load_results([kept(tmp_path / "1", rows)]))
    assert told.found[0].difference.seeds == (1, 2, 3)
    assert told.deviations == (
        "another seed: one at seed 4 counts for no hypothesis",
        "another setting: extra at seed 1 is in no hypothesis and not secondary",
    )
    # A seed less is no verdict, whatever it looks like.
    fewer = [part for part in rows if (part[0]["setting"], part[0]["seed"]) != ("one", 3)]
    told = judged_by(made, load_results([kept(tmp_path / "2", fewer)]))
    assert [one.verdict for one in told.found] == [Verdict.NOT_RUN] * 2
    assert told.found[0].reason == "seeds 3 are missing"
    assert told.found[0].difference.seeds == (1, 2)
    assert "not run: one at seeds 3" in told.deviations
    assert told.counted == 5
    # Another panel, no panel, other values: each leaves its run out.
    for change, words in (
        ({"panels": {"craft": {"tasks": 16, "sha256": "0" * 64}}}, "another panel of craft"),
        ({"panels": {}}, "does not say which tasks of craft"),
        ({"config_sha256": "0" * 64}, "has other values than were registered"),
    ):
        changed = [list(part) for part in rows]
        changed[2][-1] = changed[2][-1] | change
        told = judged_by(made, load_results([kept(tmp_path / "3", changed)]))
        assert told.found[0].verdict is Verdict.NOT_RUN
        assert any("left out: one at seed 3 " in line and words in line for line in told.deviations)
    nothing = [
        [row | {"experiment": "other"} if row["kind"] == "run" else row for row in part]
        for part in rows
    ]
    told = judged_by(made, load_results([kept(tmp_path / "4", nothing)]))
    assert {one.reason for one in told.found} == {"no registered run is finished"}
    assert "another experiment: nothing was registered of other" in told.deviations


def test_the_commands_from_claim_to_report(claims, tmp_path, monkeypatch):
    """Runs are real ones of the base model, whose rows say what they were judged on."""
    invoke = CliRunner().invoke
    held = tmp_path / "claims.json"
    told = invoke(app, ["register", str(claims)])
    assert told.exit_code == 0, told.output
    assert read_registration(held).digest in told.stdout
    assert "registered already" in invoke(app, ["register", str(claims)]).stdout

    def finish(runs, results, **_):
        for run in runs:
            scratch = tmp_path / f"{run.setting}-{run.seed}"
            scratch.mkdir()
            results.append(play_run(run, scratch, progress=lambda *_: None).rows)
        return Outcome(finished=len(runs), skipped=0, failed=())

    monkeypatch.setattr(runner, "run_all", finish)
    out = tmp_path / "out"
    words = ["run", str(tmp_path / "experiment.toml"), "--out", str(out)]
    some = ["--only", "one", "--only", "two", "--seed", "1", "--seed", "2"]
    refused = invoke(app, [*words, "--registration", str(held)])
    assert refused.exit_code == 1
    assert "'extra' is in no hypothesis" in refused.output
    assert "seed 4 was not registered" in refused.output
    assert not out.exists()
    done = invoke(app, [*words, *some, "--registration", str(held)])
    assert done.exit_code == 0, done.output
    assert read_registration(out / BESIDE_RESULTS) == read_registration(held)
    without = invoke(app, [*words, *some])
    assert without.exit_code == 1
    assert "give --registration" in without.output
    anew = invoke(app, [*words, *some, "--registration", str(held), "--force-new"])
    assert anew.exit_code == 1
    assert "nothing of it is begun anew" in anew.output
    report = invoke(app, ["report", str(out)])
    assert report.exit_code == 0, report.output
    assert report.stdout.startswith("## Registered: claims\n")
    assert "**not run**: seeds 3 are missing" in report.stdout
    assert "4 of 6 registered runs are finished" in report.stdout
    assert "* not run: two at seeds 3" in report.stdout
    assert "/plots/registered-claims.png)" in report.stdout
    panel = read_registration(held).panels["craft"].sha256
    assert "Panels of the purpose *reporting*: craft, 16 tasks" in report.stdout
    assert f"Judged on: craft, 16 tasks, SHA-256 `{panel}`." in report.stdout
    given = invoke(app, ["report", str(out), "--registration", str(held), "--format", "json"])
    content = json.loads(given.stdout)["registration"]
    assert [one["verdict"] for one in content["found"]] == ["not run", "not run"]
    claims.write_text(CLAIMS.replace("target = 0.1", "target = 0.0"))
    other = tmp_path / "other.json"
    assert invoke(app, ["register", str(claims), "--out", str(other)]).exit_code == 0
    departs = invoke(app, ["report", str(out), "--registration", str(other)])
    assert departs.exit_code == 1
    assert "held to another registration" in departs.output
    claims.write_text(CLAIMS.replace("runs = 6", "runs = 7"))
    wrong = invoke(app, ["register", str(claims), "--format", "json"])
    assert wrong.exit_code == 1
    assert json.loads(wrong.stdout)["error_code"] == "registration"


def test_the_example_of_the_page_is_a_registration(tmp_path):
    """The block of docs/evidence.md, of the shipped experiment that it names."""
    page = (ROOT / "docs" / "evidence.md").read_text()
    (block,) = re.findall(r"```toml\n(name = .*?)```", page, re.DOTALL)
    path = tmp_path / "claims.toml"
    path.write_text(block)
    draft = read_draft(path)
    shipped = ROOT / "experiments" / draft.experiment
    loaded = load_experiment(shipped)
    assert {*draft.primary, *draft.secondary} <= {row.name for row in loaded.setting}
    path.write_text(block.replace(f'"{draft.experiment}"', f'"{shipped}"'))
    made = register(path)
    assert made.experiment == loaded.name
    assert made.digest == register(path).digest
