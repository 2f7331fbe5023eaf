"""The transition-swap bandit: no policy serves both, by exactly the theorem's gap; a line mends it.

Observations are all alike, so a policy can only go by the number of the turn, and by what it is
told before the first. Every deterministic one is played, and every mixed one is a mixture of those.
"""

from itertools import product

import numpy as np
import pytest

from evolution.envs.builtin.bandit import ACTIONS, HORIZON, MOST_REWARD, Bandit, SwappedBandit
from evolution.envs.catalogue import Catalogue, make
from evolution.envs.tasks import Split
from evolution.envs.variants.spec import VariantSpec
from evolution.errors import EpisodeStateError, TaskIdError
from lab.base.tokenizer import UNKNOWN, build_tokenizer, environment_words

POLICIES = tuple(product(ACTIONS, repeat=HORIZON))
TASKS = tuple(Bandit().task_ids(Split.TRAIN)[:HORIZON])
BEST = MOST_REWARD * HORIZON


def played(environment, actions, tasks=TASKS):
    """Mean return and success rate of a deterministic policy, and all that it saw."""
    returns, solved, seen = [], [], []
    for task in tasks:
        seen.append(environment.reset(task)[0])
        total = 0.0
        for action in actions:
            observation, reward, terminated, truncated, info = environment.step(action)
            assert not terminated
            total += reward
            seen.append(observation)
        assert truncated
        returns.append(total)
        solved.append(environment.success(info))
    return np.mean(returns), np.mean(solved), seen


def values(delta, tasks=TASKS):
    """J of every deterministic policy in both environments."""
    both = (Bandit(delta=delta), SwappedBandit(delta=delta))
    return np.array([[played(e, policy, tasks)[0] for e in both] for policy in POLICIES])


def test_observations_tell_nothing_of_which_it_is():
    for policy in POLICIES:
        one, other = played(Bandit(), policy), played(SwappedBandit(), policy)
        assert one[2] == other[2]
        assert len(set(one[2])) == 1
    assert Bandit().told == SwappedBandit().told


def test_success_is_the_return_in_parts_of_the_most():
    for policy in POLICIES:
        for environment in (Bandit(), SwappedBandit()):
            total, success, _ = played(environment, policy)
            assert success == pytest.approx(total / BEST)


def test_every_policy_is_worth_half_and_the_gap_is_the_theorems():
    found = values(1.0)
    assert len(found) == 16
    assert found.mean(axis=1) == pytest.approx(BEST / 2)
    gap = found.max(axis=0).mean() - found.mean(axis=1).max()
    assert gap == pytest.approx(MOST_REWARD * HORIZON * 1.0 / 2)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8, 1.0])
def test_mixing_moves_the_return_from_one_to_the_other_and_gains_nothing(share):
    """The policy that moves left with the same probability at every turn."""
    found = values(1.0)
    weights = [np.prod([share if a == ACTIONS[0] else 1 - share for a in p]) for p in POLICIES]
    one, other = np.array(weights) @ found
    assert (one, other) == pytest.approx((BEST * share, BEST * (1 - share)))
    assert (one + other) / 2 == pytest.approx(BEST / 2)


def test_the_gap_shrinks_with_the_distance_of_the_kernels():
    tasks = Bandit().task_ids(Split.TRAIN)[:1500]
    for delta in (0.0, 0.5):
        left, right = ((ACTIONS[n],) * HORIZON for n in range(2))
        own = [
            played(Bandit(delta=delta), left, tasks),
            played(SwappedBandit(delta=delta), right, tasks),
        ]
        fed = np.mean(
            [played(kind(delta=delta), left, tasks)[0] for kind in (Bandit, SwappedBandit)]
        )
        gap = np.mean([one[0] for one in own]) - fed
        # 6,000 turns: a standard error of at most 0.0065 of the mean, and the return is their sum.
        assert gap == pytest.approx(MOST_REWARD * HORIZON * delta / 2, abs=0.02)


def test_whoever_is_told_which_it_is_gets_everything_in_both():
    line = VariantSpec(kind="none", descriptor=True)
    known = Catalogue(variants={"bandit": line, "bandit-swapped": line})
    both = [known.make(name) for name in ("bandit", "bandit-swapped")]
    lines = [environment.descriptor for environment in both]
    assert len(set(lines)) == 2
    assert [known.unperturbed().make(e.name).descriptor for e in both] == lines
    assert [e.told.removeprefix(f"{e.descriptor} ") for e in both] == [Bandit().told] * 2
    # A policy is a deterministic one for each line: the best of all of them.
    best = max(
        np.mean([played(e, chosen[e.descriptor])[0] for e in both])
        for chosen in (dict(zip(lines, pair, strict=True)) for pair in product(POLICIES, repeat=2))
    )
    assert best == pytest.approx(BEST)


def test_its_words_are_the_small_models():
    tokenizer = build_tokenizer(environment_words())
    unknown = tokenizer.convert_tokens_to_ids(UNKNOWN)
    for environment in (Bandit(), SwappedBandit()):
        text = " ".join((environment.describe(), environment.instruction, *ACTIONS))
        assert unknown not in tokenizer(text)["input_ids"]
        assert set(text.split()) <= environment.vocabulary
        assert set(played(environment, ("zzz",) * HORIZON)[2][-1].split()) <= environment.vocabulary


def test_what_is_no_move_is_worth_nothing_and_an_episode_ends():
    bandit = make("bandit")
    assert played(bandit, ("move up",) * HORIZON)[:2] == (0.0, 0.0)
    bandit.reset(TASKS[0])
    observation, *_, info = bandit.step("move up")
    assert observation.startswith("not ")
    assert info["valid"] is False
    for _ in range(HORIZON - 1):
        assert bandit.step("move left")[4]["valid"] is True
    with pytest.raises(EpisodeStateError):
        bandit.step("move left")
    with pytest.raises(EpisodeStateError):
        make("bandit").step("move left")
    with pytest.raises(TaskIdError):
        bandit.reset(-1)


@pytest.mark.parametrize("name", ["bandit", "bandit-swapped"])
def test_the_expert_of_each_solves_it_and_chance_half_the_time(name):
    environment = make(name)
    assert environment.success({"solved": True})
    for task in TASKS:
        actions = environment.solve(task)
        assert played(environment, actions, [task])[1] == 1.0
    rng = np.random.default_rng(0)
    tries = [
        played(environment, [environment.random_action(rng) for _ in range(4)])[1]
        for _ in range(200)
    ]
    assert 0.4 < np.mean(tries) < 0.6
