"""``chorale budget``: what runs have cost by their plans, and the silos' newest ledger heads."""

import asyncio
import json
import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from dp.accounting.charge import training_charges
from dp.accounting.compose import epsilon_of
from server.cli import client
from server.cli.main import app
from server.run.budget import budget_response
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw

NAMES = silo_names(4)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path) as made:
        yield made


def units(run):
    return {unit.unit: (unit.spent, unit.planned) for unit in run.units}


def test_a_run_is_accounted_for_the_unit_that_its_mode_is_about(world):
    run_id = asyncio.run(world.run(sw.stepped_toml(rounds=1)))
    answer = budget_response(world.store)
    (run,) = answer.runs
    assert (run.run_id, run.name, run.mode) == (run_id, "world", "record_distributed")
    assert (run.releases, run.charged_releases) == (3, 5)
    assert (run.delta, run.epsilon_cap) == (1e-5, 1e9)
    ((unit, (spent, planned)),) = units(run).items()
    assert unit == "task"
    assert 0 < spent < planned
    for silo in world.silos.values():
        assert silo.ledger.spent_epsilons()["task"] == pytest.approx(spent)
    assert [head.silo_id for head in answer.heads] == list(NAMES)
    for head in answer.heads:
        assert (head.identity.run_id, head.identity.round, head.identity.step) == (run_id, 1, 2)
        world.silos[head.silo_id].ledger.require_contains(head.seq, head.sha256)


def test_a_local_training_is_accounted_for_before_its_round_reaches_an_upload(world):
    """A silo's ledger is charged when it trains, so a figure of 0 while it does would be wrong."""
    seen = []

    def before_wait():
        (run,) = budget_response(world.store).runs
        seen.append((run.releases, units(run)["task"]))

    world.before_wait = before_wait
    text = sw.plan_toml(mode="record_local", noise=1.0, steps=3, delta_clip=4.0)
    asyncio.run(world.run(text))
    spec = sw.parsed(text).spec
    trained = epsilon_of(training_charges(spec), spec.delta)["task"]
    releases, (spent, planned) = seen[0]
    assert releases == 0
    assert spent == pytest.approx(trained)
    assert 0 < spent < planned


def test_runs_of_several_modes_stand_side_by_side(world):
    async def both():
        first = await world.run(sw.plan_toml(mode="silo", noise=1.0), "a")
        return first, await world.run(sw.plan_toml(), "b")

    first, second = asyncio.run(both())
    silo, bare = budget_response(world.store).runs
    assert (silo.run_id, bare.run_id) == (first, second)
    assert 0 < units(silo)["silo"][0] < units(silo)["silo"][1] < 100
    assert units(bare) == {"silo": (math.inf, math.inf)}


def test_with_no_run_there_is_nothing_to_say(world):
    answer = budget_response(world.store)
    assert (list(answer.runs), list(answer.heads)) == ([], [])


# The command -------------------------------------------------------------------------------------


@pytest.fixture
def command(world, monkeypatch):
    """Run the command against this world's store; return what it printed."""

    @contextmanager
    def connect(_):
        yield SimpleNamespace(GetBudget=lambda request, timeout: budget_response(world.store))

    monkeypatch.setattr(client, "connect", connect)

    def run(output):
        done = CliRunner().invoke(app, ["budget", "--format", output])
        assert done.exit_code == 0, done.stderr
        return done

    return run


def test_the_command_shows_both_as_a_table_and_as_json(world, command):
    run_id = asyncio.run(world.run(sw.stepped_toml(rounds=1)))
    text = command("text").stdout
    assert f"{run_id}  mode record_distributed  3 of 5 charged releases" in text
    assert "task  ε " in text
    assert "planned, cap 1e+09, at δ = 1e-05" in text
    for name in NAMES:
        line = next(line for line in text.splitlines() if line.startswith(name))
        assert f"{run_id} round 1 step 2 attempt 1" in line
    answer = json.loads(command("json").stdout)
    assert answer["status"] == "ok"
    (run,) = answer["data"]["runs"]
    assert run["units"][0]["unit"] == "task"
    assert len(answer["data"]["heads"]) == 4
    assert len(answer["data"]["heads"][0]["sha256"]) == 64


def test_the_command_says_that_nothing_is_protected_and_what_to_do_first(world, command):
    empty = command("text")
    assert (empty.stdout, empty.stderr) == ("", "no runs yet: chorale run start PLAN\n")
    asyncio.run(world.run(sw.plan_toml()))
    assert "nothing is protected" in command("text").stdout
    (run,) = json.loads(command("json").stdout)["data"]["runs"]
    assert run["units"] == [{"unit": "silo", "spent": "inf", "planned": "inf"}]


def test_the_help_teaches_what_the_figures_are():
    shown = CliRunner().invoke(app, ["budget", "--help"]).output
    for word in ("spent", "planned", "cap", "chorale-silo budget", "restored from an old copy"):
        assert word in " ".join(shown.split())
