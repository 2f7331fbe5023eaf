"""Every registered environment keeps the promises of ``Environment``."""

from collections.abc import Iterator
from itertools import islice, pairwise

import numpy as np
import pytest

from evolution.envs import (
    ENVIRONMENTS,
    EnvironmentFailureError,
    EpisodeStateError,
    SaysAdmissible,
    ScriptedEnvironment,
    Shard,
    ShardError,
    SolvesTasks,
    Split,
    TakesVariants,
    TaskIdError,
    make,
)
from evolution.envs.environment import MAX_OBSERVATION_WORDS
from evolution.errors import VariantError
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from lab.base.tokenizer import UNKNOWN, build_tokenizer, environment_words
from tests.kit.evolution.scripted_engine import ScriptedEngine

# The scripted player may run out of steps in BabyAI; elsewhere it knows everything.
EXPERT_SOLVES = {
    "babyai": 0.95,
    "craft": 1.0,
    "desk": 1.0,
    "desk-long": 1.0,
    "keeper": 1.0,
    "market": 1.0,
    "maze": 1.0,
    "shop": 1.0,
    "temptation": 1.0,
    "wordle": 0.97,
    "words": 1.0,
}
NONSENSE = ("", "zzz", "<|user|> goal", "move", "get 99 log", "craft", "é" * 5_000, "a\nb", "turn")


# A theorem's witness has one observation and no tasks to tell apart: test_bandit.py.
WITNESSES = {"bandit", "bandit-swapped"}


@pytest.fixture(params=sorted(set(ENVIRONMENTS) - WITNESSES))
def environment(request: pytest.FixtureRequest) -> Iterator[ScriptedEnvironment]:
    made = make(request.param)
    assert isinstance(made, ScriptedEnvironment)
    yield made
    made.close()


def play(environment, task_id, rng, *, expert_share=0.0, valid=None):
    """All observations and actions of an episode, and its last step's info.

    With a list for ``valid`` also what each step said of its action.
    """
    observation, info = environment.reset(task_id)
    observations, actions, ended = [observation], [], False
    while not ended:
        try:
            # Asked before every step: some scripted players must see them all.
            action = environment.expert_action(rng)
        except EnvironmentFailureError:
            action = environment.random_action(rng)
        if rng.random() >= expert_share:
            action = environment.random_action(rng)
        observation, _, terminated, truncated, info = environment.step(action)
        actions.append(action)
        observations.append(observation)
        ended = terminated or truncated
        if valid is not None:
            valid.append(info["valid"])
    return (observations, actions, info) if valid is None else (observations, actions, info, valid)


def test_names_itself(environment):
    assert ENVIRONMENTS[environment.name].endswith(type(environment).__name__)
    assert environment.family
    assert environment.instruction


def test_same_task_and_actions_give_the_same_episode(environment):
    task_ids = environment.task_ids(Split.TRAIN)
    other = make(environment.name)
    for task_id in (task_ids[3], task_ids[40], task_ids[-1]):
        seen, actions, info = play(environment, task_id, np.random.default_rng(7))
        # Another object, with another history, must answer alike.
        other.reset(task_ids[11])
        first, _ = other.reset(task_id)
        again = [first]
        for action in actions:
            observation, *_, other_info = other.step(action)
            again.append(observation)
        assert again == seen
        assert other_info == info
    other.close()


def test_tasks_differ(environment):
    firsts = {environment.reset(i)[0] for i in islice(environment.task_ids(Split.TRAIN), 64)}
    assert len(firsts) > 32


def test_splits_are_disjoint_and_large(environment):
    ranges = [environment.task_ids(split) for split in Split]
    assert all(len(tasks) >= 100_000 for tasks in ranges)
    bounds = sorted((tasks[0], tasks[-1]) for tasks in ranges)
    assert all(left[1] < right[0] for left, right in pairwise(bounds))


def test_a_task_id_outside_every_split_is_refused(environment):
    for task_id in (-1, environment.task_ids(Split.HELD_OUT)[-1] + 1):
        with pytest.raises(TaskIdError):
            environment.reset(task_id)


def test_shards_deal_out_the_labels(environment):
    count = 4
    if len(environment.labels) % count:
        with pytest.raises(ShardError):
            environment.task_ids(Split.TRAIN, shard=Shard(index=0, count=count))
        return
    seen = []
    for index in range(count):
        tasks = environment.task_ids(Split.TRAIN, shard=Shard(index=index, count=count))
        assert {environment.shard_of(task, count) for task in tasks[:50]} == {index}
        seen.append({environment.task_label(task) for task in tasks[:50]})
    assert set().union(*seen) == set(environment.labels)
    assert sum(map(len, seen)) == len(environment.labels)


def test_stops_at_the_step_limit_and_refuses_more(environment):
    environment.reset(environment.task_ids(Split.TRAIN)[0])
    for step in range(1, environment.max_steps + 1):
        _, _, terminated, truncated, info = environment.step("zzz")
        assert not terminated
        assert truncated == (step == environment.max_steps)
    assert not environment.success(info)
    with pytest.raises(EpisodeStateError):
        environment.step("zzz")


def test_refuses_a_step_before_the_first_reset(environment):
    with pytest.raises(EpisodeStateError):
        make(environment.name).step("zzz")


def test_nonsense_is_answered_not_echoed(environment):
    for action in NONSENSE:
        environment.reset(environment.task_ids(Split.TRAIN)[5])
        observation, reward, terminated, _, info = environment.step(action)
        assert reward == 0
        assert not terminated
        assert observation.startswith("not ")
        assert not environment.vocabulary or set(observation.split()) <= environment.vocabulary
        assert not environment.success(info)


def test_what_cannot_be_read_is_an_invalid_action(environment):
    for task_id in environment.task_ids(Split.TRAIN)[:4]:
        environment.reset(task_id)
        # A keeper and its visitor read any words.
        for action in NONSENSE[: 1 if environment.name == "keeper" else environment.max_steps]:
            assert environment.step(action)[4]["valid"] is False


def test_no_action_of_the_expert_is_invalid(environment):
    rng = np.random.default_rng(0)
    for share in (1.0, 0.0):
        for task in environment.task_ids(Split.TRAIN)[:40]:
            valid = play(environment, task, rng, expert_share=share, valid=[])[3]
            assert all(said is True for said in valid)


def test_an_action_that_is_only_impossible_is_not_invalid(environment):
    """Read, and answered that it cannot be done here."""
    impossible = {
        "craft": ("craft forge", "get 9 wheat"),
        "desk": ("open: Nora", "book: nine", "delete: the last"),
        "desk-long": ("open: Nora", "order: two teacups"),
        "market": ("buy", "next", "back", "open 4", "pick red"),
        "maze": ("move up", "move left", "move down", "move right"),
        "shop": ("buy", "next", "back", "open 4", "pick red"),
        "temptation": ("buy", "next", "back", "open 4", "pick red"),
    }
    seen = set()
    for task_id in environment.task_ids(Split.TRAIN)[:8]:
        for action in impossible.get(environment.name, ()):
            environment.reset(task_id)
            observation, *_, info = environment.step(action)
            assert info["valid"] is True
            seen.add(observation.startswith("not possible"))
    assert (True in seen) == (environment.name in impossible)


def test_every_admissible_action_is_possible_and_read(environment):
    if not isinstance(environment, SaysAdmissible):
        assert environment.name in {"keeper", "market", "shop", "temptation", "words"}, (
            "anything may be searched for, and said"
        )
        return
    rng = np.random.default_rng(3)
    offered = set()
    for task_id in environment.task_ids(Split.TRAIN)[:12]:
        environment.reset(task_id)
        ended = False
        while not ended:
            actions = environment.admissible()
            assert len(set(actions)) == len(actions) > 0
            assert list(actions) == list(environment.admissible())
            offered.update(actions)
            action = actions[int(rng.integers(len(actions)))]
            observation, _, terminated, truncated, info = environment.step(action)
            ended = terminated or truncated
            assert info["valid"] is True
            assert not observation.startswith("not ")
    assert len(offered) >= 4


def test_the_experts_solution_of_a_task_solves_it(environment):
    assert isinstance(environment, SolvesTasks)
    other = make(environment.name)
    solved = 0
    for task_id in environment.task_ids(Split.HELD_OUT)[:20]:
        actions = environment.solve(task_id)
        assert list(environment.solve(task_id)) == list(actions)
        other.reset(task_id)
        for place, action in enumerate(actions, start=1):
            *_, terminated, truncated, info = other.step(action)
            assert (terminated or truncated) == (place == len(actions))
        if actions:
            solved += other.success(info)
    other.close()
    assert solved >= 18


def test_every_variant_of_a_task_is_nearer_to_its_end_and_the_expert_solves_it(environment):
    assert isinstance(environment, TakesVariants)
    offered = 0
    for task_id in environment.task_ids(Split.TRAIN)[:10]:
        solution = environment.solve(task_id)
        variants = environment.variants(task_id)
        # An answer in one turn has no middle; nor has a task that the expert does not solve.
        assert variants == tuple(f"after {done}" for done in range(1, len(solution)))
        offered += len(variants)
        for done, variant in enumerate(variants, start=1):
            observation, info = environment.reset_variant(task_id, variant)
            assert not environment.vocabulary or set(observation.split()) <= environment.vocabulary
            assert len(observation.split()) <= MAX_OBSERVATION_WORDS
            assert not environment.success(info)
            for action in solution[done:]:
                *_, terminated, _, info = environment.step(action)
            assert terminated
            assert environment.success(info)
        for none_such in ("", "after 0", f"after {len(solution)}", "after", "after 1 "):
            with pytest.raises(VariantError):
                environment.reset_variant(task_id, none_such)
    assert (offered > 0) == (environment.name != "words")


def test_an_episode_begins_where_a_prefix_or_a_variant_leads(environment):
    for task_id in environment.task_ids(Split.TRAIN)[:4]:
        solution = environment.solve(task_id)
        if len(solution) < 2:
            continue
        environment.reset(task_id)
        done = len(solution) // 2
        for action in solution[:done]:
            seen, *_ = environment.step(action)
        tasks = [
            Task(environment=environment.name, task_id=task_id, prefix=tuple(solution[:done])),
            Task(environment=environment.name, task_id=task_id, variant=f"after {done}"),
        ]
        played = run_episodes(
            ScriptedEngine(*solution[done:]),
            tasks,
            temperature=0.0,
            seed=0,
            max_new_tokens=100,
            make_environment=make,
        )
        assert [one.task for one in played.trajectories] == tasks
        for one in played.trajectories:
            assert one.success
            assert one.steps[0].observation == seen
            assert len(one.steps) == len(solution) - done


def test_expert_solves_tasks(environment):
    rng = np.random.default_rng(0)
    task_ids = environment.task_ids(Split.HELD_OUT)[:120]
    solved = [
        environment.success(play(environment, task, rng, expert_share=1.0)[2]) for task in task_ids
    ]
    assert np.mean(solved) >= EXPERT_SOLVES[environment.name]


def test_random_player_mostly_fails(environment):
    rng = np.random.default_rng(0)
    solved = [
        environment.success(play(environment, task, rng)[2])
        for task in environment.task_ids(Split.HELD_OUT)[:120]
    ]
    assert np.mean(solved) < 0.25


def test_text_is_bounded_and_inside_the_vocabulary(environment):
    if not environment.vocabulary:
        pytest.skip("an open vocabulary")
    rng = np.random.default_rng(1)
    tokenizer = build_tokenizer(environment_words())
    unknown = tokenizer.convert_tokens_to_ids(UNKNOWN)
    for task in environment.task_ids(Split.PRETRAIN)[:48]:
        observations, actions, _ = play(environment, task, rng, expert_share=0.5)
        assert max(len(text.split()) for text in observations) <= MAX_OBSERVATION_WORDS
        for text in (*observations, *actions):
            assert set(text.split()) <= environment.vocabulary
    text = " ".join((environment.instruction, *observations, *actions))
    assert unknown not in tokenizer(text)["input_ids"]


def test_success_is_what_step_reports(environment):
    """A reward on the last step and the verdict agree, whatever the size of the reward."""
    rng = np.random.default_rng(2)
    for task in environment.task_ids(Split.TRAIN)[:24]:
        environment.reset(task)
        ended = False
        while not ended:
            try:
                action = environment.expert_action(rng)
            except EnvironmentFailureError:
                action = environment.random_action(rng)
            _, reward, terminated, truncated, info = environment.step(action)
            ended = terminated or truncated
        assert environment.success(info) == (reward > 0)
