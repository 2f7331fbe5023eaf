"""Adapters that silos choose by own tasks: never by what is judged, and without a trace outside."""

import json

import numpy as np
import pytest

import lab.experiment.judge
from evolution.envs.tasks import Split
from evolution.methods.personal.compared import CANDIDATES, SHARED, Choice, Choices, Compared
from evolution.methods.personal.store import PersonalStore
from lab.experiment.errors import JudgeError
from lab.experiment.single_run import play_run
from lab.experiment.tasks.environments import judged_catalogue, labels_of
from lab.report.lines import EvalLine, parse_line
from tests.kit.lab.experiment_samples import HEAD, SILOS, runs, setting

PERSONAL = 'evolve = { personal = "residual", personal_choice = 6 }\n'
ONE_ROUND = HEAD.replace("rounds = 2", "rounds = 1")


def play(run, scratch):
    return play_run(run, scratch, progress=lambda *_: None)


def choice_of(kind):
    """What tells one kind of candidate apart from the shared adapter, if any."""
    compared = tuple(
        Compared(candidate=one, tasks=6, gained=4 * (one.kind == kind), lost=0)
        for one in CANDIDATES
    )
    return Choices(families={"craft": Choice(compared=compared)}, members={"craft": "craft"})


@pytest.fixture
def choosing(monkeypatch):
    """Every silo's choice as it is asked for; the kind that is named here is what it comes to."""
    choose, asked, kinds = lab.experiment.judge.choose, [], []

    def spy(engine, **named):
        asked.append(named)
        found = choose(engine, **named)
        return choice_of(kinds[len(asked) - 1]) if kinds else found

    monkeypatch.setattr(lab.experiment.judge, "choose", spy)
    return asked, kinds


def test_silos_choose_by_own_tasks_that_nobody_is_judged_on(tmp_path, choosing):
    asked, kinds = choosing
    kinds += ["shared", "own", "interpolated"]
    text = ONE_ROUND + SILOS + setting("with", "fedse_personal", PERSONAL)
    text += setting("without", "fedse_personal", PERSONAL.replace("6", "0"))
    with_choice, without = runs(tmp_path, text)
    result, plain = (play(run, tmp_path / run.setting) for run in (with_choice, without))
    environment = judged_catalogue(with_choice).make("craft")
    judged = set(environment.task_ids(Split.HELD_OUT)[:16])
    labels = labels_of(with_choice, "craft")
    assert len(asked) == 3
    for silo, named in enumerate(asked):
        ids = [task.task_id for task in named["tasks"]]
        assert len(set(ids)) == 6
        assert not judged & set(ids)
        assert {labels.index(environment.task_label(task_id)) % 4 for task_id in ids} == {silo}
    # What is learned and shared is what it is without a choice, bit for bit.
    ((one,), (other,)) = result.adapters, plain.adapters
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    for silo, own in result.personal.items():
        assert all(own[n].tobytes() == plain.personal[silo][n].tobytes() for n in own)
    rows = [row for row in result.rows if row["kind"] == "eval"]
    unchosen = [row for row in rows if row["scope"] != "chosen"]
    assert [row | {"setting": ""} for row in unchosen] == [
        row | {"setting": ""} for row in plain.rows if row["kind"] == "eval"
    ]
    assert with_choice.sha256 != without.sha256
    lines = [parse_line(json.dumps(row).encode()) for row in rows]
    assert all(isinstance(line, EvalLine) for line in lines)

    def outcomes(scope, silo):
        mine = [row for row in rows if (row["scope"], row["silo"]) == (scope, silo)]
        return {row["label"]: row["outcomes"] for row in mine}

    assert outcomes("chosen", 0) == outcomes("global", 0)
    assert outcomes("chosen", 1) == outcomes("personal", 1)
    assert outcomes("chosen", 2).keys() == outcomes("global", 2).keys()
    chosen = [row for row in rows if row["scope"] == "chosen"]
    assert {(row["silo"], row["adapter"], row["weight"]) for row in chosen} == {
        (0, "shared", 0.0),
        (1, "own", 1.0),
        (2, "interpolated", 0.25),
    }


def test_each_family_is_judged_with_what_was_chosen_for_it(tmp_path, monkeypatch):
    """Two environments of one silo, and the shared adapter where it owns nothing."""
    found = Choices(
        families={"craft": choice_of("own").families["craft"], "maze": choice_of("").overall},
        members={"craft": "craft", "maze": "maze"},
    )
    assert found.chosen_in("craft").kind == "own"
    assert found.chosen_in("maze") == found.chosen_in("shop") == SHARED
    monkeypatch.setattr(lab.experiment.judge, "choose", lambda _engine, **_named: found)
    silos = SILOS.replace('["craft"]', '["craft", "maze"]')
    text = ONE_ROUND + silos.replace("demonstrations = 3", "tasks = 4")
    (run,) = runs(tmp_path, text + setting("x", "fedse_personal", PERSONAL))
    rows = [row for row in play(run, tmp_path / "run").rows if row["kind"] == "eval"]

    def outcomes(scope, environment):
        wanted = (scope, 0, environment)
        mine = [r for r in rows if (r["scope"], r["silo"], r["environment"]) == wanted]
        return {row["label"]: row["outcomes"] for row in mine}

    assert outcomes("chosen", "craft") == outcomes("personal", "craft")
    assert outcomes("chosen", "maze") == outcomes("global", "maze")
    assert {row["adapter"] for row in rows if row["scope"] == "chosen"} == {"own", "shared"}


def test_a_choice_by_fewer_tasks_than_planned_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(lab.experiment.judge, "choose", lambda _engine, **_named: choice_of("own"))
    text = ONE_ROUND + SILOS + setting("x", "fedse_personal", PERSONAL.replace("6", "7"))
    (run,) = runs(tmp_path, text)
    with pytest.raises(JudgeError, match="chose by fewer than its 7 tasks"):
        play(run, tmp_path / "run")


def test_the_residual_is_added_to_the_adapter_that_is_shared_in_the_end(tmp_path):
    text = ONE_ROUND + SILOS + setting("x", "fedse_personal", PERSONAL.replace("6", "0"))
    (run,) = runs(tmp_path, text)
    result = play(run, tmp_path / "run")
    (shared,) = result.adapters
    stores = sorted((tmp_path / "run").glob("**/personal/residual"))
    assert len(stores) == 3
    for silo, own in result.personal.items():
        kept = PersonalStore(stores[silo]).newest()
        assert all(np.array_equal(own[name], shared[name] + kept[name]) for name in shared)
        assert any(kept[name].any() for name in kept)
