"""Judging: the global adapter and the silo's own are kept apart, and neither leaves the silo."""

import json
import re

import pytest

from evolution.errors import PersonalStoreError
from evolution.methods.constant import ConstantEvolver
from evolution.methods.evolver import EvolverSetup
from evolution.methods.personal.compared import CANDIDATES, Choice, Choices, Compared
from federation.plan.read import read_plan
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import LocalStoreError
from silo_agent.local_work.alone import evolve_alone
from silo_agent.views.judgement import Judgement, newest_judgements
from tests.kit.server import world_plan as sw
from tests.kit.silo_agent.working_silo import WorkingSilo, head_of, metrics, task_of

SECRET = 4321
ROW = {"label": "plank", "environment": "craft", "temperature": 0.0, "episodes": 8}


class Personal(ConstantEvolver):
    """A method whose personal adapter solves a number of tasks that nothing else does."""

    broken = False
    chooses = None

    def choose(self, work):
        return self.chooses

    def evaluate(self, work):
        rows = super().evaluate(work)
        if not (work.personal or work.chosen):
            return rows
        if self.broken:
            raise PersonalStoreError("damaged")
        return [type(row)(**{**_fields(row), "successes": SECRET}) for row in rows]


def _fields(row):
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def plan_of():
    text = sw.plan_toml(rounds=4).decode()
    text = text.replace('method = "constant"', 'method = "fed-se"\nenvironments = ["craft"]', 1)
    return read_plan(text.replace("held_out = 0", "held_out = 8\nevery_rounds = 1").encode())


def choices_of(kind):
    """What tells one kind of candidate apart from the shared adapter, if any."""
    compared = tuple(
        Compared(candidate=one, tasks=SECRET, gained=9 * (one.kind == kind), lost=0)
        for one in CANDIDATES
    )
    return Choices(families={"craft": Choice(compared=compared)}, members={"craft": "craft"})


@pytest.fixture
def silo(tmp_path, monkeypatch):
    options = {"value": 0.125, "family": "craft", "episodes": 64, "successes": 16}

    def make(setup):
        assert setup.recipe.method.name == "fed-se"
        return Personal(EvolverSetup(options=options))

    monkeypatch.setattr("silo_agent.local_work.held_method.make_evolver", make)
    monkeypatch.setattr("silo_agent.local_work.alone.make_evolver", make)
    made = []

    def start(personal):
        one = WorkingSilo(tmp_path / personal)
        made.append(one)
        file = tmp_path / personal / "silo.toml"
        file.write_text(f'environments = ["craft"]\n[evolve]\npersonal = "{personal}"\n')
        one.work._method._config = one.work._judge._config = SiloConfig.load(tmp_path / personal)
        return one

    yield start
    for one in made:
        one.work.close()
        one.ledger.close()


def lived(one):
    """Two rounds with their evaluations; what was said outside, masked metrics included."""
    said = []
    for number in (1, 2):
        one.work.start(task=task_of(number), plan=plan_of(), head=head_of())
        call = one.reports.wait()
        said.append({**call, "thread": None})
        done = one.work.finished("run-1", number)
        asked = metrics("episodes/craft", "successes/craft", "update_norm_sq")
        said.append(done.for_attempt(asked).figures)
        one.work.adopted(head_of(number), plan_of())
        one.settle()
    assert one.errors() in (0.0, 2.0)
    return said


@pytest.mark.parametrize("personal", ["ditto", "finetune", "residual"])
def test_a_personal_adapter_is_judged_apart_and_nothing_of_it_leaves(silo, personal):
    without, one = silo("off"), silo(personal)
    assert lived(one) == lived(without)
    assert str(SECRET) not in repr(one.reports.calls)
    rows = one.store.evaluations()
    assert [row for row in rows if not row["personal"]] == without.store.evaluations()
    own = [row for row in rows if row["personal"]]
    assert {(row["round"], row["successes"]) for row in own} == {(1, SECRET), (2, SECRET)}
    # The probes' page is read by the silo's own people; even there only its duration shows.
    samples = [
        (sample.name, sample.value)
        for family in one.metrics.registry.collect()
        for sample in family.samples
    ]
    assert SECRET not in [value for _, value in samples]
    # As a number of its own: a duration may hold the same digits by chance.
    rounds = json.dumps(one.store.rounds())
    assert re.search(rf"(?<![\d.]){SECRET}(?!\d)", rounds) is None


@pytest.mark.parametrize("kind", ["shared", "own", "interpolated", "base"])
def test_what_a_silo_chooses_stays_in_it_and_changes_nothing_that_it_says(silo, monkeypatch, kind):
    without = silo("ditto")
    said = lived(without)
    chooses = silo("finetune")
    monkeypatch.setattr(Personal, "chooses", choices_of(kind))
    assert lived(chooses) == said
    assert str(SECRET) not in repr(chooses.reports.calls)
    assert without.store.choices() == []
    rows = chooses.store.choices()
    assert [(row["run"], row["round"]) for row in rows] == [("run-1", 1), ("run-1", 2)]
    assert all(Choices.of(row) == choices_of(kind) for row in rows)
    # The shared adapter and the silo's own have their figures already.
    judged = chooses.store.evaluations()
    assert [row for row in judged if "chosen" not in row] == without.store.evaluations()
    found = newest_judgements(judged, "run-1")
    chosen = [row for row in found if row.chosen]
    assert bool(chosen) == (kind in {"interpolated", "base"})
    assert {row.scope for row in chosen} <= {"chosen"}


def test_a_choice_that_fails_costs_the_figures_before_it_nothing(silo, monkeypatch):
    without, fails = silo("ditto"), silo("finetune")
    said = lived(without)

    def fail(_self, _work):
        raise PersonalStoreError("damaged")

    monkeypatch.setattr(Personal, "choose", fail)
    assert lived(fails) == said
    assert fails.store.evaluations() == without.store.evaluations() != []
    assert fails.store.choices() == []
    assert fails.errors() == 2


def test_before_the_first_round_the_personal_adapter_is_the_global_one(silo):
    one = silo("ditto")
    one.work._method.of(plan_of(), "run-1").chooses = choices_of("own")
    one.work.adopted(head_of(0), plan_of())
    one.settle()
    assert {row["personal"] for row in one.store.evaluations()} == {False}
    assert one.store.choices() == []


def test_a_personal_adapter_that_cannot_be_read_costs_the_global_one_nothing(silo, monkeypatch):
    monkeypatch.setattr(Personal, "broken", True)
    one, without = silo("ditto"), silo("off")
    assert lived(one) == lived(without)
    assert one.store.evaluations() == without.store.evaluations() != []
    assert one.errors() == 2


def test_alone_judges_both_as_well(silo, tmp_path):
    silo("ditto")
    evolve_alone(
        config=SiloConfig.load(tmp_path / "ditto"),
        plan=plan_of(),
        adapter=sw.INITIAL,
        out_dir=tmp_path / "out",
        progress=lambda *_: None,
    )
    found = newest_judgements(LocalStore(tmp_path / "out").evaluations(), "alone")
    assert [(row.scope, row.round, row.successes) for row in found] == [
        ("global", 4, 16),
        ("global", 4, 16),
        ("personal", 4, SECRET),
        ("personal", 4, SECRET),
    ]


# The sums -----------------------------------------------------------------------------------------


def row(**changes):
    return {"run": "run-1", "round": 2, "personal": False, **ROW, "successes": 2, **changes}


def test_labels_are_added_up_and_adapters_are_not():
    rows = [
        row(round=1, successes=8),
        row(successes=1),
        row(label="stick", successes=3),
        row(personal=True, successes=7),
        row(run="run-2", round=9),
        # The same row again, of a rehearsal that was done twice: the newest counts.
        row(successes=2),
    ]
    same = {"round": 2, "environment": "craft", "temperature": 0.0}
    assert newest_judgements(rows, "run-1") == (
        Judgement(**same, personal=False, episodes=16, successes=5),
        Judgement(**same, personal=True, episodes=8, successes=7),
    )
    assert newest_judgements(rows, "run-3") == ()


@pytest.mark.parametrize(
    "changes",
    [{"round": None}, {"round": "x"}, {"episodes": "x"}, {"temperature": []}, {"label": ...}],
)
def test_a_damaged_row_is_named(changes):
    broken = {name: value for name, value in row(**changes).items() if value is not ...}
    with pytest.raises(LocalStoreError, match="run-1 is damaged"):
        newest_judgements([broken], "run-1")


def test_nothing_finished_is_said_as_that():
    empty = Judgement(
        round=1, personal=True, environment="craft", temperature=0.0, episodes=0, successes=0
    )
    assert "nothing of 0" in empty.line
