"""Plays in step: common batches, each its own tries and memory, and failures where they belong."""

import dataclasses

import numpy as np
import pytest

from evolution.errors import LocalTimeError, PartError
from evolution.methods.admission import made_up
from evolution.methods.evolver import EvolveSettings, Work
from evolution.methods.playing import Played as PlayedTries
from evolution.methods.playing import Player, play_all
from evolution.methods.returned import groups_of
from evolution.part import Part
from evolution.parts.seam import MemoryView, PartWork
from evolution.rollout.episodes import EpisodeBatch
from evolution.trajectory import Ask

WORK = PartWork(
    round=1, tries_per_task=4, best_per_task=True, temperature=1.0, rng=np.random.default_rng(0)
)


class Played:
    """A play that is a function."""

    def __init__(self, play):
        self.play = play


class World:
    """Made-up units by name, each with tries that are known; what was asked of the engine."""

    def __init__(self, *units):
        self.tries = {unit: made_up(unit)[0].trajectories for unit in units}
        self.places = {unit: range(4 * i, 4 * i + 4) for i, unit in enumerate(units)}
        self.asked = []
        self.broken = set()

    def __call__(self, tasks, places):
        self.asked.append(list(places))
        of_place = {
            place: one
            for unit, own in self.places.items()
            for place, one in zip(own, self.tries[unit], strict=True)
        }
        tries = tuple(None if place in self.broken else of_place[place] for place in places)
        assert [task.task_id for task in tasks] == [of_place[p].task.task_id for p in places]
        dropped = sum(one is None for one in tries)
        return EpisodeBatch(tries=tries, dropped=dropped, environment_steps=len(tries))

    def say(self, asks, places):
        self.asked.append([(place, one.text) for one, place in zip(asks, places, strict=True)])
        return [f"of {one.text}" for one in asks]

    def players(self, *plays):
        return [
            Player(
                play=play,
                tasks=[one.task for one in self.tries[unit]],
                places=self.places[unit],
                view=MemoryView(
                    successes=lambda _shortest, unit=unit: self.tries[unit],
                    groups=lambda unit=unit: made_up(unit),
                ),
                work=WORK,
            )
            for unit, play in zip(self.tries, plays, strict=True)
        ]


def once():
    return Part.own("once").make()


def test_the_tries_of_all_plays_are_one_batch_in_the_order_of_their_places():
    world = World("a", "b")
    world.broken = {2}
    played = play_all(world.players(once(), once()), world, world.say, apart=True)
    assert world.asked == [[*range(8)]]
    expected = [one for i, one in enumerate((*world.tries["a"], *world.tries["b"])) if i != 2]
    assert list(played.kept) == list(played.counted) == expected
    assert (played.dropped, played.environment_steps) == (1, 8)


def test_a_play_may_ask_one_after_the_other_and_keeps_its_places():
    def by_one(tasks, past, work):
        found = []
        for task in tasks:
            (one,) = yield [task]
            found.append(one)
        return found[1:]

    world = World("a", "b")
    played = play_all(world.players(Played(by_one), once()), world, world.say, apart=True)
    assert world.asked == [[0, 4, 5, 6, 7], [1], [2], [3]]
    # All that was played is kept, what the play returned is counted.
    assert played.counted == (*world.tries["a"][1:], *world.tries["b"])
    assert played.kept == (*world.tries["a"], *world.tries["b"])


class Begun(World):
    """Its tries are of the tasks that were asked for, wherever they begin."""

    def __call__(self, tasks, places):
        batch = super().__call__(tasks, places)
        tries = zip(tasks, batch.tries, strict=True)
        begun = tuple(one and dataclasses.replace(one, task=task) for task, one in tries)
        return dataclasses.replace(batch, tries=begun)


def test_tries_that_begin_elsewhere_in_a_task_are_a_group_of_their_own():
    def half_from_the_middle(tasks, past, work):
        found = yield tasks[:2]
        later = yield [dataclasses.replace(task, prefix=("act",)) for task in tasks[2:]]
        return [one for one in (*found, *later) if one is not None]

    world = Begun("a", "b")
    world.broken = {1, 3}
    drawn = [one.task for unit in "ab" for one in world.tries[unit]]
    players = world.players(Played(half_from_the_middle), once())
    groups = groups_of(play_all(players, world, world.say, apart=False), drawn, _work())
    # Of the four tries of "a" two began elsewhere, and one of these and of those failed.
    assert [(g.task.prefix, len(g.trajectories), g.dropped) for g in groups] == [
        ((), 1, 3), (("act",), 1, 0), ((), 4, 0)
    ]  # fmt: skip
    assert all(one.task == group.task for group in groups for one in group.trajectories)


def test_a_task_that_was_drawn_twice_is_one_group_and_knows_how_many_are_missing():
    tries = made_up("a")[0].trajectories
    played = PlayedTries(counted=tries[:3], kept=tries[:3], dropped=5, environment_steps=0)
    (group,) = groups_of(played, [tries[0].task] * 8, _work())
    assert (len(group.trajectories), group.dropped, group.round) == (3, 5, 7)


def _work():
    return Work(
        round=7,
        adapter={},
        adapter_sha256="",
        trainable=frozenset(),
        settings=EvolveSettings(tries_per_task=4),
        seed=0,
    )


def test_a_smuggled_memory_of_another_unit_is_empty():
    smuggled, seen = [], []

    def smuggles(tasks, past, work):
        seen.append([view.successes(shortest=True) for view in smuggled])
        smuggled.append(past)
        assert past.successes(shortest=True)
        played = yield tasks
        seen.append([len(view.groups()) for view in smuggled])
        return played

    world = World("a", "b")
    play_all(world.players(Played(smuggles), Played(smuggles)), world, world.say, apart=True)
    assert seen == [[], [()], [1, 0], [0, 1]]


def test_words_are_asked_for_beside_tries_and_come_back_in_order():
    heard = []

    def asks(tasks, past, work):
        words = yield [Ask(instruction="say", text="one"), Ask(instruction="say", text="two")]
        one, word = yield [tasks[0], Ask(instruction="say", text="three")]
        heard.extend([*words, word])
        return [one]

    world = World("a", "b")
    played = play_all(world.players(once(), Played(asks)), world, world.say, apart=True)
    assert heard == ["of one", "of two", "of three"]
    # Every question has a place of its own, as every try has.
    assert world.asked == [[(4, "one"), (5, "two")], [*range(4)], [(6, "three")], [4]]
    assert played.counted == (*world.tries["a"], world.tries["b"][0])


def always_asks(tasks, past, work):
    while True:
        yield [Ask(instruction="say", text="more")]


def wishes(tasks, past, work):
    return (yield ["a task"])


def too_many(tasks, past, work):
    return (yield [*tasks, tasks[0]])


def foreign(tasks, past, work):
    return (yield [made_up("elsewhere")[0].task])


def nothing(tasks, past, work):
    return (yield [])


def made_up_return(tasks, past, work):
    yield tasks
    return made_up("b")[0].trajectories[:1]


def twice(tasks, past, work):
    played = yield tasks
    return [played[0], played[0]]


def raises(tasks, past, work):
    yield tasks
    raise KeyError("data")


@pytest.mark.parametrize(
    "play", [too_many, always_asks, wishes, foreign, nothing, made_up_return, twice, raises]
)
def test_what_a_play_may_not_do_costs_its_own_unit_or_the_round(play):
    world = World("a", "b")
    played = play_all(world.players(Played(play), once()), world, world.say, apart=True)
    assert played.counted == world.tries["b"]
    with pytest.raises((PartError, KeyError)):
        play_all(world.players(Played(play), once()), world, world.say, apart=False)


def test_the_end_of_the_time_ends_everything():
    def late(tasks, past, work):
        yield tasks
        raise LocalTimeError("over")

    world = World("a", "b")
    with pytest.raises(LocalTimeError):
        play_all(world.players(Played(late), once()), world, world.say, apart=True)
