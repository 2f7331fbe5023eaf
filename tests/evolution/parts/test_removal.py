"""Whether parts keep units apart: the removal test passes for ours and finds those that couple."""

import types
from itertools import pairwise

import pytest

from evolution.errors import EvolverSetupError
from evolution.methods.admission import made_up, require_apart_parts, what_is_made
from evolution.part import BasePart, Part
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from federation.plan.methods import PARTS, Couples, NoOptions, PartCard, Reads

OURS = {kind: Part.own(name) for kind, name in (
    ("play", "once"), ("credit", "shortest-success"), ("objective", "nll")
)}  # fmt: skip
ADMITTED = [
    card.name
    for card in PARTS.values()
    if card.kind in OURS and card.couples is not Couples.ALL and card.reads is not Reads.SILO
]


def part(monkeypatch, kind, made):
    """A part of a package that is not installed: its class, under a module of its own."""
    module = types.ModuleType("coupling_parts")
    module.Made = made
    monkeypatch.setitem(__import__("sys").modules, "coupling_parts", module)
    made.couples, made.reads = Couples.TASK, Reads.UNIT
    card = PartCard(
        kind=kind,
        name="coupling",
        code="coupling_parts:Made",
        says="keeps what it should not",
        couples=Couples.TASK,
        reads=Reads.UNIT,
    )
    return {**OURS, kind: Part(card=card, options=NoOptions())}


@pytest.mark.parametrize("name", ADMITTED)
def test_every_part_that_is_admitted_at_record_level_keeps_units_apart(name):
    mine = Part.own(name)
    require_apart_parts({**OURS, mine.card.kind: mine})
    # There is something to keep apart: each made-up unit comes to something of its own.
    made = [what_is_made(OURS, made_up(unit)) for unit in "abc"]
    assert all(one != other for one, other in pairwise(made))


def test_a_credit_with_a_running_mean_is_found_out(monkeypatch):
    seen = []

    class Centred(BasePart):
        def credit(self, groups, past, work):
            tries = [one for group in groups for one in group.trajectories]
            seen.extend(one.reward for one in tries)
            mean = sum(seen) / len(seen)
            return [Row.of(one, weight=one.reward - mean) for one in tries]

    with pytest.raises(EvolverSetupError, match="depends on other units"):
        require_apart_parts(part(monkeypatch, "credit", Centred))


def test_a_play_that_keeps_another_units_tries_is_found_out(monkeypatch):
    calls = []

    class Hoards(BasePart):
        def play(self, tasks, past, work):
            calls.append(tasks[0])
            played = yield tasks
            return list(played[: len(calls)])

    with pytest.raises(EvolverSetupError, match="depends on other units"):
        require_apart_parts(part(monkeypatch, "play", Hoards))


def test_an_objective_that_counts_its_rows_is_found_out(monkeypatch):
    rows = []

    class Counts(BasePart):
        def terms(self, out, row):
            rows.append(1)
            return -out.logprob * row.weights * len(rows)

    with pytest.raises(EvolverSetupError, match="depends on other units"):
        require_apart_parts(part(monkeypatch, "objective", Counts))


def test_a_part_that_fails_on_made_up_units_is_not_admitted(monkeypatch):
    class Fails(BasePart):
        def credit(self, groups, past, work):
            raise KeyError("nobody's")

    with pytest.raises(EvolverSetupError, match=r"failed on made-up units.*KeyError"):
        require_apart_parts(part(monkeypatch, "credit", Fails))


def test_what_couples_all_differs_when_a_unit_is_removed():
    """Why it is refused at record level: called for all units at once, it mixes them."""

    def centred(units):
        groups = [group for unit in units for group in made_up(unit)]
        tries = [one for group in groups for one in group.trajectories]
        mean = sum(one.reward for one in tries) / len(tries)
        return [Row.of(one, weight=one.reward - mean) for one in groups[0].trajectories]

    assert centred("ab") != centred("a")
    assert centred("ab") == centred("ab")


def test_a_view_is_empty_but_while_it_is_open():
    mine = ("mine",)
    view = MemoryView(
        successes=lambda _shortest: mine, groups=lambda: mine, demonstrations=lambda: mine
    )
    assert view.successes(shortest=True) == view.groups() == view.demonstrations() == ()
    with view.opened():
        assert view.successes(shortest=True) == view.groups() == view.demonstrations() == mine
    assert view.groups() == view.demonstrations() == ()
    assert PartWork.__dataclass_fields__.keys() == {
        "round", "tries_per_task", "best_per_task", "temperature", "rng", "rendered"
    }  # fmt: skip
