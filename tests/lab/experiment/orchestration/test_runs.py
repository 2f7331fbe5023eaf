"""Whole runs in simulated time: they train, lose rounds, are ended, go on, and replay."""

import asyncio
import json

import numpy as np
import pytest

from evolution.model.lora import initial_adapter
from federation.selection.decided import read_decisions
from lab.experiment.config import load_experiment
from lab.experiment.errors import ExperimentFileError
from lab.experiment.member import Member
from lab.experiment.single_run import DECISIONS, play_run, versions_of
from lab.experiment.state import RunStates
from lab.report.lines import parse_line
from tests.kit.lab.experiment_samples import HEAD, runs, setting, silo, write

SIX = "".join(
    silo(k).replace(f"shard_index = {k}", f"shard_index = {k % 4}") for k in range(6)
).replace("demonstrations = 3", "demonstrations = 1")
TABLE = """
[orchestration]
quorum = 3
ready_deadline_s = 3600
drop = 0.0
away = 0.0
liars = 1
silent = 1
adviser_s = 5
selection = { policy = "random", count = 4 }

[judge]"""
SMALL = (
    HEAD.replace("held_out = 16", "held_out = 4")
    .replace("episodes = 8", "episodes = 2")
    .replace("rounds = 2", "rounds = 3")
    .replace("[judge]", TABLE)
)
ADVISED = (
    'orchestration = { adviser = "rule", selection = { policy = "advised", count = 4, '
    "ranges = { ready_deadline_s = [1800, 7200] } } }\nnoise = { z = 0.01 }"
)
QUIET = {"progress": lambda *_: None}


class EndedError(Exception):
    """What stands for a kill inside the process."""


def told(result):
    return [row["simulated"] for row in result.rows if row["kind"] == "round"]


def without_times(result):
    return [{k: v for k, v in row.items() if k != "wall_s"} for row in result.rows]


def test_a_run_trains_those_who_were_ready_and_says_what_it_cost(tmp_path, monkeypatch):
    (run,) = runs(tmp_path, SMALL + SIX + setting("x", "fedse"))
    worked = []
    evolve = Member.evolve

    def noted(member, adapter, *, round_number, **rest):
        worked.append((round_number, run.silos[member.indices[0]].name))
        return evolve(member, adapter, round_number=round_number, **rest)

    monkeypatch.setattr(Member, "evolve", noted)
    result = play_run(run, tmp_path / "run", **QUIET)
    result.write_adapters(tmp_path / "kept")
    decided = list(read_decisions((tmp_path / "kept" / DECISIONS).read_bytes().splitlines()))
    assert [one.round for one in decided] == [1, 2, 3]
    for one in decided:
        assert asyncio.run(one.again()) == one.choice
        at_work = {name for number, name in worked if number == one.round}
        assert at_work <= set(one.choice.silos)
    first = initial_adapter(run.base, run.rank, run.alpha, run.seed, run.target)
    coordinates = sum(tensor.size for tensor in first.values())
    for number, found in enumerate(told(result), 1):
        ready = sum(at == number for at, _ in worked)
        assert found["asked"] == 4
        assert (found["ready"] == ready) or found["lost"]
        assert found["upload_bytes"] == 4 * coordinates * ready
        assert found["download_bytes"] == (4 * coordinates * 6 if ready else 0)
        assert 0 < found["seconds"] <= 3600
        assert (found["tokens"], found["requests"]) == (0, 0)
    (adapter,) = result.adapters
    assert any((adapter[name] != first[name]).any() for name in first)
    for row in result.rows:
        line = parse_line(json.dumps(row).encode())
        if row["kind"] == "round":
            assert line.simulated.asked == 4


def test_a_lost_round_takes_its_time_and_leaves_the_adapter(tmp_path):
    """Nobody can work within a second."""
    lost = "orchestration = { ready_deadline_s = 1 }"
    (run,) = runs(tmp_path, SMALL + SIX + setting("x", "fedse", lost))
    result = play_run(run, tmp_path / "run", **QUIET)
    assert [(one["lost"], one["ready"], one["seconds"]) for one in told(result)] == [
        (True, 0, 1.0)
    ] * 3
    assert [one["upload_bytes"] + one["download_bytes"] for one in told(result)] == [0] * 3
    first = initial_adapter(run.base, run.rank, run.alpha, run.seed, run.target)
    (adapter,) = result.adapters
    assert all(np.array_equal(adapter[name], first[name]) for name in first)
    assert len(result.decisions.splitlines()) == 3
    for row in result.rows:
        parse_line(json.dumps(row).encode())


def test_a_run_that_was_ended_goes_on_to_the_same_rows_and_decisions(tmp_path, monkeypatch):
    (run,) = runs(tmp_path, SMALL + SIX + setting("x", "fedse", ADVISED))
    whole = play_run(run, tmp_path / "whole", **QUIET)
    assert all(one["advised"] and one["tokens"] > 100 for one in told(whole))
    assert all(one["requests"] == 1 for one in told(whole))

    evolve = Member.evolve

    def ended(member, adapter, *, round_number, **rest):
        if round_number == 3:
            raise EndedError
        return evolve(member, adapter, round_number=round_number, **rest)

    states = RunStates(
        directory=tmp_path / "states", run=run, versions=versions_of(run), say=lambda _: None
    )
    with monkeypatch.context() as patched:
        patched.setattr(Member, "evolve", ended)
        with pytest.raises(EndedError):
            play_run(run, tmp_path / "first", states=states, **QUIET)
    rounds = []
    result = play_run(
        run, tmp_path / "second", states=states, progress=lambda number, *_: rounds.append(number)
    )
    assert rounds == [3]
    assert without_times(result) == without_times(whole)
    assert result.decisions == whole.decisions
    ((one,), (other,)) = result.adapters, whole.adapters
    assert all(one[name].tobytes() == other[name].tobytes() for name in other)


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ('aggregation = { method = "scaffold" }', "aggregation.method"),
        ('aggregation = { server_optimiser = "fedadam" }', "plain server step"),
        ("per_round = 4", "per_round"),
        ('orchestration = { selection = { policy = "random", count = 9 } }', "there are 6 silos"),
        ("orchestration = { liars = 5, silent = 5 }", "there are 6 silos"),
        ("orchestration = { quorum = 5 }", "fewer than the quorum"),
        ('orchestration = { adviser = "rule" }', "adviser"),
        ("orchestration = { draws_count = true, quorum = 9 }", "quorum"),
        ('orchestration = { knows = "losses" }', "knows"),
        ("orchestration = { hours = 3 }", "unknown key"),
    ],
)
def test_what_simulated_rounds_do_not_allow(tmp_path, extra, problem):
    loaded = load_experiment(write(tmp_path, SMALL + SIX + setting("x", "fedse", extra)))
    with pytest.raises(ExperimentFileError, match=problem):
        loaded.runs(base_dir=tmp_path, base_sha256="0" * 64)


def test_simulated_rounds_are_part_of_a_run_and_change_no_digest_of_one_without(tmp_path):
    text = SMALL + SIX + setting("x", "fedse") + setting("base", "pretrained")
    one, base = runs(tmp_path, text)
    assert one.described()["orchestration"]["selection"]["count"] == 4
    assert "orchestration" not in base.described()
    assert one.model_copy(update={"orchestration": None}).sha256 != one.sha256
