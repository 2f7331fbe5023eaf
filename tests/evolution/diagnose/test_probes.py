"""T1, T2, T3 and the fallback, on the transition-swap bandit and on worlds with nothing between.

Policies are scripts. The bandit is the witness of the theorem: observations tell nothing, and the
best moves are opposite; a line before the instruction mends what can be mended.
"""

from collections import Counter

import numpy as np
import pytest

from evolution.diagnose.federate import beside_floor
from evolution.diagnose.kernels import distance, kernels_agree
from evolution.diagnose.optimal import actions_coincide, best_set
from evolution.diagnose.policies import Policies
from evolution.diagnose.prediction import Signs, predict
from evolution.diagnose.reveal import Classifier, environment_shows
from evolution.diagnose.worlds import World, kind_of, probe_tasks, replay
from evolution.envs.builtin.bandit import HORIZON, Bandit, SwappedBandit
from evolution.envs.catalogue import Catalogue
from evolution.envs.tasks import Split
from evolution.envs.variants.spec import VariantSpec
from evolution.methods.evolver import Assignment
from evolution.trajectory import Task
from tests.kit.evolution.policy_engine import PolicyEngine, held

LEFT, RIGHT = "move left", "move right"
LINE = VariantSpec(kind="none", descriptor=True)


def either(_text, number):
    return LEFT if number < 0.5 else RIGHT


def told_so(text, number):
    """Whoever can read the line; by chance where there is none."""
    if "goal left ." in text or "goal right ." in text:
        return LEFT if "goal left ." in text else RIGHT
    return either(text, number)


ENGINE = {
    "start": either,
    "bandit": lambda _text, _number: LEFT,
    "bandit-swapped": lambda _text, _number: RIGHT,
    "again": lambda _text, _number: LEFT,
    "together": either,
    "told": told_so,
}


def world(name, *, spec=None, catalogue=None, tasks=48, as_name=None):
    known = catalogue or Catalogue(variants={} if spec is None else {name: spec})
    assignment = Assignment(environment=name)
    return World(
        name=as_name or name,
        assignment=assignment,
        catalogue=known,
        kind=kind_of(name, spec),
        tasks=probe_tasks(known, assignment, tasks),
    )


def policies(**scripts):
    engine = PolicyEngine(**ENGINE, **scripts)
    return Policies(engine, temperature=1.0, max_new_tokens=64, batch_size=16, seed=3)


@pytest.fixture
def bandits():
    return [world("bandit"), world("bandit-swapped")]


@pytest.fixture
def described():
    return [world("bandit", spec=LINE), world("bandit-swapped", spec=LINE)]


IMPROVED = {"bandit": held("bandit"), "bandit-swapped": held("bandit-swapped")}
TOLD = dict.fromkeys(IMPROVED, held("told"))


def first_test(worlds, improved=IMPROVED, *, again="again", asked=None):
    return kernels_agree(
        worlds,
        asked or policies(),
        start=held("start"),
        improved=improved,
        again=held(again),
        episodes=12,
        states=40,
    )


def second_test(worlds, improved=IMPROVED, asked=None):
    return actions_coincide(
        worlds,
        asked or policies(),
        start=held("start"),
        improved=improved,
        states=12,
        actions=3,
        rolls=3,
    )


def third_test(worlds, start="start", asked=None):
    return environment_shows(
        worlds, asked or policies(), start=held(start), episodes=36, horizon=HORIZON
    )


def test_the_bandit_fails_every_test_and_lies_at_the_floor(bandits):
    t1, t2, t3 = first_test(bandits), second_test(bandits), third_test(bandits)
    assert (t1.passed, t2.passed, t3.passed) == (False, False, False)
    # With δ = 1 every step that is compared differs.
    assert {pair.distance.value for pair in t1.pairs} == {1.0}
    assert t1.distance_floor.count == 0
    assert t1.distance_floor.total == 2 * 12 * HORIZON
    assert (t2.agree.count, t2.equal.count) == (0, 0)
    assert t2.agree.total >= 8
    assert t3.eta_cls == pytest.approx(0.5)
    assert t3.words == ()
    fallback = beside_floor(
        bandits,
        policies(),
        start=held("start"),
        alone=IMPROVED,
        together=held("together"),
        delta=t1.delta,
        episodes=48,
    )
    assert fallback.verdict == "F1", fallback.why
    assert fallback.floor == 0.5
    signs = Signs(
        locus="environments", horizon=HORIZON, t1=t1.passed, t2=t2.passed, t3=t3.passed,
        t_star=t3.t_star, eta_cls=t3.eta_cls, overlap=t2.agree, fallback=fallback.verdict,
    )  # fmt: skip
    assert predict(signs).pattern == "D"


def test_with_its_line_the_bandit_passes_the_third_test_at_once(described):
    t3 = third_test(described)
    assert (t3.passed, t3.t_star, t3.eta_cls, t3.eta_ker) == (True, 1, 0.0, 0.0)
    assert set(t3.words) >= {"left"} or set(t3.words) >= {"right"}
    # What differs still differs: the line reveals it and changes nothing of it.
    t1 = first_test(described, TOLD, again="told")
    assert t1.passed is False
    assert t1.delta == 1.0
    assert second_test(described, TOLD).passed is False
    fallback = beside_floor(
        described,
        policies(),
        start=held("start"),
        alone=TOLD,
        together=held("told"),
        delta=1.0,
        episodes=48,
    )
    assert (fallback.verdict, fallback.worst) == ("F2", 0.0)


def test_worlds_of_one_kind_are_at_no_distance_and_pass_the_first_test():
    """Two silos of one environment with other tasks: what a partition of tasks makes."""

    def of_shard(name, start):
        made = world("bandit", as_name=name)
        ids = Bandit().task_ids(Split.TRAIN)[start : start + 24]
        return World(
            name=name,
            assignment=made.assignment,
            catalogue=made.catalogue,
            kind=made.kind,
            tasks=tuple(ids),
        )

    worlds = [of_shard("one", 0), of_shard("two", 100)]
    assert worlds[0].kind == worlds[1].kind
    t1 = first_test(worlds, {"one": held("bandit"), "two": held("bandit")})
    assert t1.passed is True
    assert t1.delta == 0.0
    t2 = second_test(worlds, {"one": held("bandit"), "two": held("bandit")})
    assert t2.passed is True
    assert (t2.equal.value, t2.apart) == (1.0, ())


def test_kernels_that_agree_are_not_enough_where_policies_part():
    worlds = [world("bandit", as_name="one"), world("bandit", as_name="two")]
    t1 = first_test(worlds, {"one": held("bandit"), "two": held("bandit-swapped")})
    assert t1.delta == 0.0
    assert t1.passed is False
    assert "policies part" in t1.why


def test_policies_may_part_as_far_as_two_seeds_of_one_world_do():
    worlds = [world("bandit", as_name="one"), world("bandit", as_name="two")]
    improved = {"one": held("bandit"), "two": held("bandit-swapped")}
    assert first_test(worlds, improved, again="bandit-swapped").passed is True


class Noisy(Bandit):
    """Answers by chance of its own, whatever the task says."""

    name = "noisy"
    draws = np.random.default_rng(0)

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(self.draws.random() < 0.5), *rest


class Frail(Bandit):
    """Fails in the middle of every other episode."""

    name = "frail"
    made = 0

    def reset(self, task_id):
        type(self).made += 1
        self.frail = self.made % 2
        return super().reset(task_id)

    def step(self, action):
        if self.frail and self._step == 2:
            raise RuntimeError("it broke")
        return super().step(action)


class Given(Catalogue):
    """A catalogue with environments of a test's own."""

    def __init__(self, *kinds):
        super().__init__()
        self._kinds = {kind.name: kind for kind in kinds}

    def make(self, name):
        return self._kinds[name]() if name in self._kinds else super().make(name)


def played(where, version="start", episodes=24):
    tasks = [Task(environment=where.environment, task_id=t) for t in where.tasks[:episodes]]
    return policies().play(held(version), where, tasks)


def test_an_environment_that_is_random_by_itself_has_a_noise_floor():
    noisy = world("noisy", catalogue=Given(Noisy))
    batch = played(noisy)
    floor, dropped = distance(noisy, noisy, batch.trajectories)
    assert dropped == 0
    assert 0.3 < floor.value < 0.7
    worlds = [noisy, world("noisy", catalogue=Given(Noisy), as_name="other")]
    t1 = first_test(worlds, {"noisy": held("bandit"), "other": held("bandit")})
    assert t1.passed is True, t1.why


def test_what_fails_is_dropped_and_counted_and_the_rest_is_compared():
    frail = world("frail", catalogue=Given(Frail))
    good = world("bandit")
    trajectories = played(good).trajectories
    rate, dropped = distance(good, frail, trajectories)
    assert dropped == len(trajectories) // 2
    assert rate.total == HORIZON * (len(trajectories) - dropped)


def test_replay_ends_where_the_episode_does_and_says_what_it_came_to():
    answers = replay(world("bandit"), world("bandit").tasks[0], [LEFT] * 9)
    assert len(answers) == HORIZON + 1
    assert [answer.over for answer in answers] == [False] * HORIZON + [True]
    assert answers[-1].success
    assert sum(answer.reward for answer in answers) == 1.0


def test_worlds_that_begin_otherwise_are_apart_at_once():
    craft, maze = world("craft"), world("maze")
    rate, _ = distance(craft, maze, played(craft, episodes=6).trajectories)
    assert (rate.value, rate.total) == (1.0, 6)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        (None, True),
        ({"kind": "none", "descriptor": True}, True),
        ({"kind": "field-subset", "choice": 0}, True),
        ({"kind": "field-subset", "choice": 1}, False),
        ({"kind": "rank-wrapper", "index": 4, "choice": 0}, True),
        ({"kind": "catalog-split", "index": 1}, False),
        ({"kind": "lookalike", "choice": 0}, False),
    ],
)
def test_a_variant_that_changes_nothing_is_the_environment_as_it_is(spec, same):
    found = kind_of("market", None if spec is None else VariantSpec.model_validate(spec))
    assert (found == kind_of("market", None)) is same


def test_splits_of_two_silos_are_two_kinds_but_for_one_that_does_not_differ():
    def split(index, env_div):
        spec = VariantSpec(kind="catalog-split", index=index, env_div=env_div)
        return kind_of("market", spec)

    assert split(1, 1.0) != split(2, 1.0)
    assert split(1, 0.0) == split(2, 0.0)


def test_a_best_set_has_what_is_not_clearly_worse():
    assert best_set({"a": [1.0], "b": [0.5]}) == {"a"}
    assert best_set({"a": [1.0], "b": [1.0]}) == {"a", "b"}
    assert best_set({"a": [0.0, 1.0, 0.0, 1.0], "b": [0.0, 0.0, 1.0, 0.0]}) == {"a", "b"}
    assert best_set({"a": [1.0, 1.0, 0.9, 1.0], "b": [0.0, 0.0, 0.1, 0.0]}) == {"a"}


def test_the_second_test_says_nothing_where_no_state_prefers_anything(bandits):
    """In the noisy world rewards are chance, so nothing is better than anything."""
    worlds = [world("noisy", catalogue=Given(Noisy), as_name=n) for n in ("one", "two")]
    found = second_test(worlds, {"one": held("start"), "two": held("start")})
    assert found.passed is None
    assert "needed to tell" in found.why


def test_a_classifier_finds_the_word_that_tells_and_nothing_in_noise():
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(40)]

    def row(label, tells):
        drawn = Counter(str(word) for word in rng.choice(words, size=12))
        return drawn + Counter([f"class{label}"] if tells else [])

    labels = [n % 3 for n in range(120)]
    for tells, least, most in ((True, 1.0, 1.0), (False, 0.15, 0.5)):
        model = Classifier([row(label, tells) for label in labels], labels, classes=3)
        fresh = [n % 3 for n in range(120)]
        right = (model.guess([row(label, tells) for label in fresh]) == np.array(fresh)).mean()
        assert least <= right <= most


class Late(SwappedBandit):
    """Shows which it is in its third observation."""

    name = "late"

    def step(self, action):
        observation, *rest = super().step(action)
        return ("possible ." if self._step == 2 else observation), *rest


def test_t_star_is_the_observation_at_which_the_environment_shows():
    worlds = [world("bandit"), world("late", catalogue=Given(Late))]
    t3 = third_test(worlds)
    assert [rate.value for rate in t3.accuracy] == [0.5, 0.5, 1.0, 1.0]
    assert (t3.passed, t3.t_star, t3.eta_cls) == (True, 3, 0.0)
    signs = Signs(
        locus="environments", horizon=HORIZON, t1=False, t2=False, t3=True, t_star=3, eta_cls=0.0
    )
    assert predict(signs).pattern == "C"
    assert predict(signs).trouble == "t_star"


def test_one_world_alone_and_too_few_tasks_tell_nothing(bandits):
    assert third_test(bandits[:1]).passed is None
    few = environment_shows(bandits, policies(), start=held("start"), episodes=3, horizon=HORIZON)
    assert few.passed is None
    assert "too few" in few.why


def test_a_probe_that_learned_nothing_says_so(bandits):
    found = beside_floor(
        bandits,
        policies(),
        start=held("start"),
        alone=dict.fromkeys(IMPROVED, held("start")),
        together=held("together"),
        delta=1.0,
        episodes=48,
    )
    assert found.verdict is None
    assert "learned anything" in found.why
