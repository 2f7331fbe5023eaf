"""Plays in step: common batches, each its own tries and memory, and failures where they belong."""

import numpy as np
import pytest

from evolution.errors import LocalTimeError, PartError
from evolution.methods.admission import made_up
from evolution.methods.playing import Player, play_all
from evolution.part import Part
from evolution.parts.seam import MemoryView, PartWork
from evolution.rollout.episodes import EpisodeBatch

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
    played = play_all(world.players(once(), once()), world, apart=True)
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
    played = play_all(world.players(Played(by_one), once()), world, apart=True)
    assert world.asked == [[0, 4, 5, 6, 7], [1], [2], [3]]
    # All that was played is kept, what the play returned is counted.
    assert played.counted == (*world.tries["a"][1:], *world.tries["b"])
    assert played.kept == (*world.tries["a"], *world.tries["b"])


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
    play_all(world.players(Played(smuggles), Played(smuggles)), world, apart=True)
    assert seen == [[], [()], [1, 0], [0, 1]]


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


@pytest.mark.parametrize("play", [too_many, foreign, nothing, made_up_return, twice, raises])
def test_what_a_play_may_not_do_costs_its_own_unit_or_the_round(play):
    world = World("a", "b")
    played = play_all(world.players(Played(play), once()), world, apart=True)
    assert played.counted == world.tries["b"]
    with pytest.raises((PartError, KeyError)):
        play_all(World("a", "b").players(Played(play), once()), World("a", "b"), apart=False)


def test_the_end_of_the_time_ends_everything():
    def late(tasks, past, work):
        yield tasks
        raise LocalTimeError("over")

    world = World("a", "b")
    with pytest.raises(LocalTimeError):
        play_all(world.players(Played(late), once()), world, apart=True)
