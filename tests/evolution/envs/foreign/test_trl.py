"""Classes for TRL's environment_factory, played by text."""

from __future__ import annotations

import json

import pytest

from evolution.envs.catalogue import Catalogue
from evolution.errors import EnvironmentSetupError, ForeignReplyError
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from silo_agent.config import foreign_specs
from tests.kit.evolution.foreign_worlds import Engine
from tests.kit.evolution.trl_classes import WORDS

NAME = "trl:wordle"
TRAIN = 1_008_000
CLASSES = "tests.kit.evolution.trl_classes"


def catalogue(of: str = "Wordle", **keys: object) -> Catalogue:
    table = {
        "entry_point": f"{CLASSES}:{of}",
        "instruction": "Find the word.",
        "max_steps": 6,
        "success": {"reward_at_least": 1.0},
        **keys,
    }
    return Catalogue(foreign=foreign_specs({NAME: table}))


def make(of: str = "Wordle", **keys: object):
    return catalogue(of, **keys).make(NAME)


def call(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def test_the_tools_stand_in_the_instruction():
    assert make().instruction == (
        "Find the word.\n\nTools:\n\n"
        "guess(word: str)\n    Guess the word.\n\n"
        "    Args:\n        word: A word of five letters.\n"
        "\n    Returns:\n        How near it is.\n\n"
        "letters(place: int = 1, form: Literal['low', 'capital'] = 'low', "
        "also: list[int] | None = None)\n    Look at letters of the word.\n\n    Args:\n"
        "        place: Which letter, from 1 on.\n        form: How it is written.\n"
        "        also: More places.\n\n    Returns:\n        The letters by place.\n\n"
        "To call a tool, answer with one JSON object and nothing else, for example:\n"
        '{"name": "guess", "arguments": {"word": "…"}}\n'
        "An answer without a call ends the task."
    )


def test_the_example_that_the_instruction_gives_is_a_call():
    environment = make()
    example = environment.instruction.splitlines()[-2]
    environment.reset(TRAIN)
    assert environment.step(example)[4]["valid"] is True


def test_episodes_are_played_through_the_whole_loop():
    def act(text: str) -> str:
        if "That is it." in text:
            return "I have found it."
        return call("guess", word=WORDS[text.count("letters are right")])

    played = run_episodes(
        Engine(act),
        [Task(environment=NAME, task_id=TRAIN + index) for index in range(3)],
        temperature=0.0,
        seed=0,
        batch_size=2,
        make_environment=catalogue().make,
    )
    assert played.dropped == 0
    assert [t.success for t in played.trajectories] == [True] * 3
    assert [len(t.steps) for t in played.trajectories] == [2, 3, 4]
    assert [t.reward for t in played.trajectories] == [1.0] * 3


def test_the_tasks_number_decides_the_episode_and_objects_are_reset():
    environment = make()
    for seed in (TRAIN, TRAIN + 1, TRAIN):
        environment.reset(seed)
        seen, *_ = environment.step(call("letters"))
        assert seen == str({"1": WORDS[seed % 3][0]})


def test_the_answer_without_a_call_ends_the_episode_and_reads_the_reward():
    environment = make()
    environment.reset(TRAIN)
    assert environment.step(call("guess", word="crane"))[1:4] == (0.0, False, False)
    step = environment.step("It is crane.")
    assert step[1:4] == (1.0, True, False)
    assert step[4]["valid"] is True
    assert environment.success(step[4])


def test_an_attribute_may_end_the_episode():
    environment = make(done="over")
    environment.reset(TRAIN)
    assert environment.step(call("guess", word="mound"))[1:4] == (0.0, False, False)
    seen, reward, terminated, *_ = environment.step(call("guess", word="crane"))
    assert (seen, reward, terminated) == ("That is it.", 1.0, True)


def test_the_reward_counts_where_the_episode_is_cut_off():
    environment = make(max_steps=2)
    environment.reset(TRAIN)
    environment.step(call("guess", word="crane"))
    _, reward, terminated, truncated, info = environment.step("{broken")
    assert (reward, terminated, truncated) == (1.0, False, True)
    assert environment.success(info)


def test_the_reward_may_be_an_attribute_or_another_method():
    environment = make("Rewardless", reward="reward", success={"reward_at_least": 0.5})
    rewards = []
    for index in range(3):
        environment.reset(TRAIN + index)
        rewards.append(environment.step("done")[1])
    assert rewards == [0.0, 0.25, 0.5]
    other = make(reward="letters", success={"reward_at_least": 0.5})
    assert "letters(" not in other.instruction


def test_a_tool_that_raises_tells_the_agent_as_trl_does():
    environment = make()
    environment.reset(TRAIN)
    environment.step(call("guess", word="crane"))
    seen, _, terminated, _, info = environment.step(call("guess", word="crane"))
    assert seen == "{'error': 'Game over.'}"
    assert not terminated
    assert info["valid"] is True


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"name": "guess"}', "keys name and arguments"),
        ('{"name": "guess", "arguments": {}, "id": 1}', "keys name and arguments"),
        ('{"name": "guess", "arguments": "{}"}', "the arguments are an object"),
        ('{"name": 1, "arguments": {}}', "The name is a text"),
        ('{"name": "a", "name": "guess", "arguments": {"word": "x"}}', "no JSON object"),
        ('{"name": "letters", "arguments": {"place": NaN}}', "no JSON object"),
        ("{'name': 'guess'}", "no JSON object"),
        ("{" * 100_000, "at most 8000 characters"),
        ('{"a":' * 1_500, "no JSON object"),
        ("<tool_call>" + call("guess", word="x"), "ends with </tool_call>"),
        (f"<tool_call>{call('guess', word='x')}</tool_call> and", "nothing comes after"),
        (f"<tool_call>{call('guess', word='x')}</tool_call>" * 2, "one tool at a time"),
        ("<tool_call>guess</tool_call>", "no JSON object"),
        (call("_secret"), "no such tool. Tools: guess, letters."),
        (call("reset", seed=1), "no such tool"),
        (call("get_reward"), "no such tool"),
        (call("__init__"), "no such tool"),
        (call("guess"), "do not fit guess(word: str)"),
        (call("guess", word=5), "do not fit"),
        (call("guess", word="x", more=1), "do not fit"),
        (call("guess", word="x", self=1), "do not fit"),
        (call("letters", place="1"), "do not fit"),
        (call("letters", place=1.0), "do not fit"),
        (call("letters", place=True), "do not fit"),
        (call("letters", form="high"), "do not fit"),
        (call("letters", also=["2"]), "do not fit"),
    ],
)
def test_what_is_no_fitting_call_costs_a_step_and_reaches_no_tool(text, told):
    environment = make(max_steps=3)
    environment.reset(TRAIN)
    seen, reward, terminated, truncated, info = environment.step(text)
    assert told in seen
    assert (reward, terminated, truncated, info["valid"]) == (0.0, False, False, False)
    # Not one of the three tries has been used.
    for word, left in (("mound", "1 letters are right."), ("crane", "That is it.")):
        assert environment.step(call("guess", word=word))[0] == left


@pytest.mark.parametrize(
    "text",
    [
        '  {"arguments": {"word": "crane"}, "name": "guess"}\n',
        'I think.\n<tool_call>\n{"name": "guess", "arguments": {"word": "crane"}}\n</tool_call>',
        '<tool_call>{"name": "guess", "arguments": {"word": "crane"}}</tool_call>\n',
    ],
)
def test_the_forms_of_a_call(text):
    environment = make()
    environment.reset(TRAIN)
    assert environment.step(text)[0] == "That is it."


def test_arguments_arrive_as_their_annotations_say():
    environment = make()
    environment.reset(TRAIN)
    seen, *_ = environment.step(call("letters", place=2, form="capital", also=[3]))
    assert seen == "{'2': 'R', '3': 'A'}"


def test_what_reset_returns_is_the_first_observation():
    assert make("Spoilt", options={"spoilt": "silent"}).reset(TRAIN)[0] == ""
    assert make("Spoilt", options={"spoilt": "blocks"}).reset(TRAIN)[0] == "one\ntwo"
    assert make(reset={"hint": " Good luck."}).reset(TRAIN)[0].endswith("letters. Good luck.")
    with pytest.raises(ForeignReplyError):
        make("Spoilt", options={"spoilt": "image"}).reset(TRAIN)
    with pytest.raises(ForeignReplyError):
        make("Spoilt", options={"spoilt": "reset"}).reset(TRAIN)


@pytest.mark.parametrize("spoilt", ["nan", "none", "text", "raise"])
def test_a_reward_that_is_none_ends_the_episode(spoilt):
    environment = make("Spoilt", options={"spoilt": spoilt})
    environment.reset(TRAIN)
    with pytest.raises(ForeignReplyError):
        environment.step("done")


@pytest.mark.parametrize(
    ("of", "keys", "problem"),
    [
        ("Nobody", {}, "cannot be made"),
        ("NoReset", {}, "no method reset"),
        ("NoTools", {}, "0 tools"),
        ("Undescribed", {}, "no docstring"),
        ("Untyped", {}, "word has no annotation"),
        ("Anyhow", {}, "cannot be given by name"),
        ("Later", {}, "async"),
        ("Odd", {}, "a type that JSON cannot be checked against"),
        ("Rewardless", {}, 'no method get_reward.*reward = "reward"'),
        ("Rows", {}, "reset does not take seed .*task_key"),
        ("Wordle", {"options": {"guesses": 3}}, "cannot be made"),
        ("Wordle", {"entry_point": "nobody_at_all:Thing"}, "install the package"),
    ],
)
def test_a_class_that_cannot_be_played_is_said(of, keys, problem):
    with pytest.raises(EnvironmentSetupError, match=problem):
        make(of, **keys).reset(TRAIN)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"entry_point": "no colon"}, "module:attribute"),
        ({"actions": ["a"]}, "answers are text"),
        ({"success": {"info": "won"}}, "use a reward"),
        ({"task_key": ""}, "task_key"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(keys, problem):
    with pytest.raises(ValueError, match=problem):
        catalogue(**keys)
