"""The adapter to reasoning-gym over a small package of its form."""

from __future__ import annotations

import importlib
import sys

import pytest

from evolution.envs.catalogue import Catalogue
from evolution.envs.foreign.child import children_of
from evolution.envs.foreign.reasoning_gym import SCORER
from evolution.envs.tasks import Split
from evolution.errors import EnvironmentSetupError, ForeignReplyError, ForeignTimeoutError
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from silo_agent.config import SiloConfig, foreign_specs
from silo_agent.doctor.site import judge_environments
from tests.kit.evolution.foreign_packages import write_reasoning_gym
from tests.kit.evolution.foreign_worlds import Engine, obedient

NAME = "reasoning-gym:numbers"
TRAIN = 1_008_000


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    directory = tmp_path_factory.mktemp("packages")
    write_reasoning_gym(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        children_of(SCORER).close()
        yield
        children_of(SCORER).close()
    sys.modules.pop("reasoning_gym", None)
    importlib.invalidate_caches()


def catalogue(**keys: object) -> Catalogue:
    return Catalogue(foreign=foreign_specs({NAME: keys}))


def make(**keys: object):
    return catalogue(**keys).make(NAME)


@pytest.mark.usefixtures("package")
class TestWithThePackage:
    def test_a_task_is_one_question_and_one_answer(self):
        played = run_episodes(
            Engine(lambda text: obedient(text) if "08001" not in text else "7"),
            [Task(environment=NAME, task_id=TRAIN + index) for index in range(3)],
            temperature=0.0,
            seed=0,
            make_environment=catalogue().make,
        )
        assert played.dropped == 0
        assert [t.success for t in played.trajectories] == [True, False, True]
        assert [t.reward for t in played.trajectories] == [1.0, 0.0, 1.0]
        assert [len(t.steps) for t in played.trajectories] == [1, 1, 1]

    def test_the_splits_have_no_seed_in_common(self):
        environment = make()
        ids = [environment.task_ids(split)[0] for split in Split]
        firsts = [environment.reset(task)[0].split()[1] for task in ids]
        assert firsts == ["0", "1008000", "2016000"]

    def test_the_generator_may_have_another_name_than_the_environment(self):
        spec = {"reasoning-gym:easy": {"generator": "numbers", "examples": [["one", "1"]]}}
        environment = Catalogue(foreign=foreign_specs(spec)).make("reasoning-gym:easy")
        assert environment.reset(TRAIN)[0].startswith("say 1008000")
        assert (environment.family, environment.examples) == ("easy", (("one", "1"),))

    def test_the_threshold_is_the_operators(self):
        for bound, solved in ((0.25, True), (0.3, False)):
            environment = make(success={"reward_at_least": bound})
            environment.reset(TRAIN)
            *_, terminated, _, info = environment.step("near")
            assert terminated
            assert environment.success(info) is solved

    def test_options_are_typed_by_the_generators_own_settings(self):
        environment = make(options={"words": ["x"], "pair": [3, 4], "rate": 1, "names": ["a", "b"]})
        assert environment.reset(TRAIN)[0] == "say 1008000 ['x'] (3, 4)"

    @pytest.mark.parametrize(
        ("keys", "problem"),
        [
            ({"options": {"longer": 1}}, "no option 'longer'; known: longest, loud, names, pair"),
            ({"options": {"longest": "5"}}, "option longest of numbers: .*integer"),
            ({"options": {"longest": True}}, "option longest of numbers: .*integer"),
            ({"options": {"words": [1]}}, "option words of numbers: .*string"),
            ({"options": {"longest": 0}}, "longest must be positive"),
            ({"generator": "number"}, "no generator 'number' .*nearest: numbers"),
            ({"generator": "composite"}, "no generator 'composite'"),
            ({"generator": "unheard_of"}, "evaluates answers as code"),
        ],
    )
    def test_what_the_package_does_not_take_is_said(self, keys, problem):
        with pytest.raises(EnvironmentSetupError, match=problem):
            make(**keys).reset(TRAIN)

    @pytest.mark.parametrize("generator", ["n_queens", "puzzle24"])
    def test_answers_that_are_code_are_scored_as_none(self, generator, tmp_path):
        environment = make(generator=generator)
        for answer, reward in (
            ("1008000", 1.0),
            ("7", 0.0),
            (f"open({str(tmp_path / 'x')!r}, 'w')", 0.125),
            ("(lambda: 1008000)()", 0.125),
        ):
            environment.reset(TRAIN)
            assert environment.step(answer)[1] == reward
        assert not list(tmp_path.iterdir())

    def test_an_answer_that_the_scorer_chokes_on_is_invalid_and_scores_nothing(self):
        environment = make()
        environment.reset(TRAIN)
        _, reward, terminated, _, info = environment.step("forty-two")
        assert (reward, terminated, info["valid"]) == (0.0, True, False)

    def test_a_scorer_that_hangs_ends_that_episode_alone(self):
        environment = make(timeout_s=5.0)
        environment.reset(TRAIN)
        with pytest.raises(ForeignTimeoutError):
            environment.step("wait")
        # The process that replaces the killed one has its time to start.
        assert make().reset(TRAIN)[0].startswith("say 1008000")

    def test_a_score_beyond_one_and_a_question_that_would_be_cut_are_refused(self):
        environment = make()
        environment.reset(TRAIN)
        with pytest.raises(ForeignReplyError, match="between 0 and 1"):
            environment.step("more than all")
        with pytest.raises(ForeignReplyError, match="4000 characters"):
            make(options={"words": ["long"]}).reset(TRAIN)


def test_without_the_package_the_error_and_the_doctor_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("evolution.envs.foreign.reasoning_gym.find_spec", lambda name: None)
    with pytest.raises(EnvironmentSetupError, match=r"pip install 'chorale\[reasoning-gym\]'"):
        make().reset(TRAIN)
    (tmp_path / "silo.toml").write_text(f'environments = ["{NAME}"]\n[foreign."{NAME}"]\n')
    verdict = judge_environments(SiloConfig.load(tmp_path))
    assert "pip install 'chorale[reasoning-gym]'" in verdict.found


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"max_steps": 2}, "max_steps"),
        ({"options": {"seed": 1}}, "seed is what addresses"),
        ({"options": {"longest": 2**40}}, "options"),
        ({"options": {"longest": {"a": 1}}}, "options"),
        ({"options": {"words": ["x"] * 65}}, "options"),
        ({"generator": "../x"}, "generator"),
        ({"actions": ["a"]}, "answers are text"),
        ({"success": {"info": "won"}}, "use a reward"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(keys, problem):
    with pytest.raises(ValueError, match=problem):
        make(**keys)
