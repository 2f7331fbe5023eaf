"""What a dry round says of what it played, and why nothing was learned."""

import dataclasses

import pytest

from evolution.envs.builtin.craft import Craft
from evolution.errors import EvolverSetupError
from evolution.trajectory import Group
from ops.doctor.checkup import Outcome
from silo_agent.config import SiloConfig
from silo_agent.doctor.dry_round import judge_dry_round, nothing_to_learn
from tests.kit.evolution.trajectories import won
from tests.kit.paths import ROOT


def group(*tries, dropped=0):
    return Group(task=won().task, round=0, trajectories=tries, dropped=dropped)


def cut_off(one):
    steps = tuple(dataclasses.replace(step, cut_off=True) for step in one.steps)
    return dataclasses.replace(one, steps=steps)


SOLVED, FAILED = won(), won(success=False)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([group(dropped=2)], ["no episode was finished"]),
        ([group(won(steps=9))], ["longer than the 40 tokens"]),
        ([group(FAILED, FAILED)], ["no episode was solved", "came to the same"]),
        ([group(SOLVED, SOLVED), group(FAILED, FAILED)], ["came to the same"]),
        ([group(cut_off(SOLVED), cut_off(FAILED))], ["every answer was cut off"]),
        ([group(SOLVED, FAILED)], []),
    ],
)
def test_why_methods_would_learn_nothing(groups, words):
    said = nothing_to_learn(groups, max_tokens=40)
    assert len(said) == len(words), said
    for word, reason in zip(words, said, strict=True):
        assert word in reason


def silo(directory, base, environment):
    (directory / "silo.toml").write_text(
        f'base_model = "{base}"\nenvironments = ["{environment}"]\n'
    )
    return SiloConfig.load(directory)


def test_a_model_without_the_words_is_warned_of_and_its_figures_are_told(tmp_path):
    found = judge_dry_round(silo(tmp_path, ROOT / "lab" / "base_model", "words"), None)
    assert found.outcome is Outcome.WARNING
    assert found.found.startswith("fed-se: 4 episodes, ")
    assert "words: 0 of 4 episodes solved, " in found.found
    assert "no episode was solved" in found.found
    assert "the base model does not know" in found.found
    assert "chorale-silo env try words --show" in found.fix


def test_training_that_changed_nothing_says_why(tmp_path, tiny_base, monkeypatch):
    def falls(*_arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(Craft, "step", falls)
    with pytest.raises(EvolverSetupError, match=r"changed nothing: no episode was finished"):
        judge_dry_round(silo(tmp_path, tiny_base, "craft"), None)
