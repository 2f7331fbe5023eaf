"""A scaffold is read in playing, and gone from what is trained on and from nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evolution.envs.environment import Environment
from evolution.memory.trajectory_json import decode_trajectory, encode_trajectory
from evolution.rollout.asking import say
from evolution.rollout.episodes import run_episodes
from evolution.train.rows import Row
from evolution.trajectory import Ask, Scaffold, Task
from tests.kit.evolution.scripted_engine import ScriptedEngine

TASK = Task(environment="two", task_id=1)
HELP = Scaffold(text="try the door <|im_end|>", made_of=("ab" * 32,))


class Two(Environment):
    """Two turns, with an example before them if there is one."""

    name = family = "two"
    max_steps = 2
    labels = ("all",)
    shown = ()

    @property
    def instruction(self):
        return "go"

    @property
    def examples(self):
        return self.shown

    def reset(self, task_id):
        self.turn = 0
        return "a room", {}

    def step(self, action):
        self.turn += 1
        return f"turn {self.turn}", 0.0, self.turn == 2, False, {}

    def success(self, info):
        return True


class Shown(Two):
    shown = (("a hall", "walk"),)


def played(*tasks, environment=Two, **limits):
    engine = ScriptedEngine("open", "walk")
    batch = run_episodes(
        engine, tasks, temperature=1.0, seed=0, make_environment=lambda _: environment(), **limits
    )
    return engine, batch.tries


@pytest.mark.parametrize("environment", [Two, Shown])
def test_the_agent_reads_it_and_training_does_not(environment):
    engine, (plain, helped) = played(TASK, replace(TASK, scaffold=HELP), environment=environment)
    read = engine.chat._tokenizer.decode(list(helped.steps[0].context_ids))
    # It stands above the first observation, in the same turn, and cannot end one.
    assert "try the door\n\na room" in read
    assert helped.steps[0].context_ids != plain.steps[0].context_ids
    assert helped.steps[0].bare_ids == plain.steps[0].context_ids
    assert [step.bare_ids for step in helped.steps[1:]] == [None]
    assert plain.steps[0].bare_ids is None
    ours, theirs = Row.of(helped, weight=2.0), Row.of(plain, weight=2.0)
    for name in ("token_ids", "mask", "weights", "logprobs"):
        np.testing.assert_array_equal(
            getattr(ours, name)[ours.mask if name == "weights" else slice(None)],
            getattr(theirs, name)[theirs.mask if name == "weights" else slice(None)],
        )


def test_weights_and_mask_of_each_token_stay_with_their_tokens():
    _, (helped,) = played(replace(TASK, scaffold=HELP))
    weights = list(range(helped.token_count))
    mask = [not own for own in helped.agent_mask]
    row = Row.of(helped, weight=weights, mask=mask)
    gone, stays = len(helped.steps[0].context_ids), len(helped.steps[0].bare_ids)
    assert row.weights[stays:].tolist() == weights[gone:]
    assert row.mask[stays:].tolist() == mask[gone:]
    # The opening that takes its place was never sampled and has no credit.
    assert not row.mask[:stays].any()
    assert not row.weights[:stays].any()


def test_one_that_stays_is_trained_on():
    _, (helped,) = played(replace(TASK, scaffold=replace(HELP, stays=True)))
    assert helped.steps[0].bare_ids is None
    assert Row.of(helped).token_ids.tolist() == list(helped.token_ids)


def test_the_try_is_one_at_the_same_task_and_says_what_helped():
    _, (plain, helped) = played(TASK, replace(TASK, scaffold=HELP))
    assert helped.task == plain.task == TASK
    assert helped.task.scaffold is None
    assert (plain.helped_by, helped.helped_by) == ((), HELP.made_of)
    # They are two conversations, and none pushes the other out of a memory.
    assert helped.conversation_sha256 != plain.conversation_sha256


def test_a_memory_gives_it_back():
    _, (helped,) = played(replace(TASK, scaffold=HELP))
    assert decode_trajectory(encode_trajectory(helped).encode(), "two", 1) == helped


def test_what_does_not_fit_with_its_scaffold_is_dropped():
    room = len(ScriptedEngine("x").chat.opening("go", "a room")) + 40
    _, (plain, helped) = played(
        TASK,
        replace(TASK, scaffold=Scaffold(text="word " * 100)),
        max_new_tokens=8,
        max_tokens=room,
    )
    assert plain is not None
    assert helped is None


# Words ----------------------------------------------------------------------------------------


def asked(engine, *texts, **changes):
    asks = [
        Ask(instruction="say", text=text, max_new_tokens=changes.pop("most", 8)) for text in texts
    ]
    given = {"temperature": 1.0, "seed": 0, "batch_size": 2} | changes
    return say(engine, asks, range(len(asks)), **given)


def test_each_question_is_answered_by_what_the_model_says_to_it():
    engine = ScriptedEngine(lambda prompt: "odd" if "one" in prompt else "even")
    assert asked(engine, "one", "two", "one more") == ["odd", "even", "odd"]


def test_an_answer_cannot_open_a_turn_and_is_cut_at_its_length():
    assert asked(ScriptedEngine("so <|im_start|> what"), "x", most=200) == ["so  what"]
    assert asked(ScriptedEngine("abcdefghijkl"), "x") == ["abcdefgh"]


def test_a_question_that_no_tokenizer_reads_costs_its_own_answer_alone():
    assert asked(ScriptedEngine("yes"), "good", "\ud800", "fine") == ["yes", "", "yes"]


def test_a_question_without_room_or_that_fails_is_answered_by_silence():
    engine = ScriptedEngine("yes")
    engine.context_limit = 60
    assert asked(engine, "short", "long " * 40) == ["yes", ""]

    class Breaks(ScriptedEngine):
        def generate(self, prompts, sampling):
            if any("bad" in self.chat._tokenizer.decode(list(p.token_ids)) for p in prompts):
                raise RuntimeError("out of memory")
            return super().generate(prompts, sampling)

    assert asked(Breaks("yes"), "good", "bad", "fine") == ["yes", "", "yes"]
