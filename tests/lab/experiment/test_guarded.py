"""Guards in a simulated federation: vetoes counted by hand, when a run stops, what comes back."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dp.errors import PrivacyError
from evolution.guard import judging
from evolution.guard.options import Outcome
from evolution.methods.evolver import Evolution
from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from lab.experiment.config import load_experiment
from lab.experiment.errors import ExperimentFileError
from lab.experiment.federation_round import CircleState, Guarding
from lab.experiment.guards.circle import GuardedCircle, Vetoing
from lab.experiment.guards.silo import Head
from lab.experiment.guards.vetoes import VetoSum
from lab.experiment.member import VETOED, Member
from lab.experiment.single_run import play_run
from lab.experiment.state import Kept, RunStates
from lab.experiment.tables import GuardTable, NoiseTable
from tests.kit.lab.experiment_samples import HEAD, SILOS, runs, setting, write
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
FAMILIES = ("babyai", "craft", "maze")
ROUNDS = 8


def veto_sum(*, z=0.0, groups=1, silos=12, key=(60, "guard")):
    return VetoSum(NoiseTable(z=z), silos=silos, groups=groups, families=FAMILIES, key=key)


def some(vetoing, silos=12):
    return [place < vetoing for place in range(silos)]


def test_without_noise_the_mean_is_the_part_that_vetoed():
    assert veto_sum().of_round(2, some(6)) == (0.5, 0.0)
    assert veto_sum(groups=3).of_round(2, some(3)) == (0.25, 0.0)


@pytest.mark.parametrize(("groups", "honest"), [(1, 11), (3, 3)])
def test_noise_is_that_of_the_block_and_of_each_sum(groups, honest):
    """Eight coordinates on a grid of 2^16: s = 23,170; each silo adds zΔ/√(n − 1) of its sum."""
    scale, z = 23_170, 0.003
    error = z * 2**16 / math.sqrt(honest) * math.sqrt(12) / (scale * 12)
    found = [veto_sum(z=z, groups=groups).of_round(r, some(5)) for r in range(1, 400)]
    assert found[0].standard_error == pytest.approx(error, rel=1e-6)
    off = np.array([one.mean for one in found]) - 5 / 12
    assert off.std() == pytest.approx(error, rel=0.15)
    assert abs(off.mean()) < 5 * error / math.sqrt(len(off))
    # Equal seeds, equal noise; another seed has another.
    assert veto_sum(z=z, groups=groups).of_round(1, some(5)) == found[0]
    assert veto_sum(z=z, groups=groups, key=(61, "guard")).of_round(1, some(5)) != found[0]


def test_noise_too_small_for_the_grid_is_refused():
    with pytest.raises(PrivacyError):
        veto_sum(z=1e-5)


class Adds:
    """An aggregation whose every round adds one to the only tensor."""

    def trainable(self, _round):
        return frozenset({"w"})

    def correction(self, _place):
        return None

    def combine(self, adapter, _updates, **_):
        return {"w": adapter["w"] + np.float32(1)}

    def state(self):
        return {}

    def take_up(self, _state):
        pass


class NoMean:
    """Of sums that nobody looks at."""

    counted = (0,)

    def among(self, _places):
        return None

    def go_on_after(self, _counted):
        pass


def circle():
    return GuardedCircle(
        [(place,) for place in range(12)],
        {"w": np.zeros(1, dtype=np.float32)},
        aggregation=Adds(),
        mean=NoMean(),
        vetoing=Vetoing(table=GuardTable(), sums=veto_sum(z=0.003), rounds=ROUNDS),
    )


def made(vetoes):
    metrics = {VETOED: 1.0} if vetoes else {}
    delta = {"w": np.zeros(1, dtype=np.float32)}
    return Evolution(delta=delta, episodes={}, successes={}, metrics=metrics, duration_s={})


def play(one, number, vetoing=0):
    """A round in which so many silos veto; what they were asked to judge, and the adapter after."""
    work = one.work(number)
    one.take(number, [made(vetoes) for vetoes in some(vetoing, len(work))])
    assert {asked.judged for asked in work} == {work[0].judged} if work else True
    return (work[0].judged if work else "rollback"), float(one.adapter["w"][0])


def test_half_of_the_silos_stop_a_run_and_the_adapter_before_the_refused_one_comes_back():
    one = circle()
    # Nobody judges the initial adapter.
    assert play(one, 1) == (None, 1.0)
    # Five of twelve are less than half, and two points of noise are not two silos.
    assert play(one, 2, vetoing=5) == (Head(round=1), 2.0)
    # The adapter of round 2 is refused: the round still adds what its silos uploaded.
    assert play(one, 3, vetoing=7) == (Head(round=2), 3.0)
    assert one.guarding.vetoes.mean == pytest.approx(7 / 12, abs=0.01)
    # The rollback takes round 4, and brings back what round 1 ended with.
    assert play(one, 4) == ("rollback", 1.0)
    assert one.guarding == Guarding(restored_round=1)
    assert play(one, 5, vetoing=12) == (Head(round=4, restored_round=1), 2.0)
    # What came back is refused as well: it is round 1's, so the initial adapter comes back.
    assert play(one, 6) == ("rollback", 0.0)
    # There is none before that, and the run goes on.
    assert play(one, 7, vetoing=12) == (Head(round=6, restored_round=0), 1.0)
    assert play(one, 8, vetoing=12) == (Head(round=7), 2.0)
    # After the last round nothing stops, and every silo has a last look.
    look = one.last_look(ROUNDS)
    assert {(asked.judged, asked.learns) for asked in look} == {(Head(round=8), False)}
    assert [float(one.adapter_of(number)["w"][0]) for number in range(9)] == [
        0, 1, 2, 3, 1, 2, 0, 1, 2,
    ]  # fmt: skip


@pytest.mark.parametrize("after", [3, 4, 5])
def test_a_circle_that_is_taken_up_goes_on_alike(after):
    vetoing = {3: 7, 5: 12}
    whole, first, rest = circle(), circle(), circle()
    for number in range(1, after + 1):
        play(first, number, vetoing.get(number, 0))
    rest.take_up(first.state())
    expected = [play(whole, number, vetoing.get(number, 0)) for number in range(1, ROUNDS + 1)]
    found = [play(rest, number, vetoing.get(number, 0)) for number in range(after + 1, ROUNDS + 1)]
    assert found == expected[after:]


def test_what_a_state_file_keeps_of_rollbacks_is_read_again(tmp_path):
    run = guarded(tmp_path)
    w = [{"w": np.full(1, number, dtype=np.float32)} for number in range(4)]
    states = RunStates(directory=tmp_path / "kept", run=run, versions={}, say=quiet)
    before = CircleState(adapter=w[3], sums=(2,), ended=w, restored={3: 0}, back_to=1)
    (tmp_path / "stores").mkdir()
    states.keep(Kept(round=4, circles=[before]), tmp_path / "stores")
    (after,) = states.take_up(tmp_path / "again").circles
    assert (after.restored, after.back_to) == ({3: 0}, 1)
    assert [float(one["w"][0]) for one in after.ended] == [0, 1, 2, 3]
    # One that names a round which no adapter is of is not gone on from.
    for lacking in (
        replace(before, back_to=4),
        replace(before, restored={3: 9}),
        CircleState(adapter=w[3], sums=(2,)),
    ):
        with pytest.raises(ValueError, match="lacks an adapter"):
            circle().take_up(lacking)


SMALL = HEAD.replace("rounds = 2", "rounds = 4").replace("every = 1", "every = 0")
GUARD = "noise = { z = 0.003 }\nguard = { tasks = 8, base_tries = 1 }\n"
ATTACK = 'attack = { silo = "silo-1", clips = 1, direction = "flip" }\n'


def guarded(tmp_path, extra=""):
    loaded = load_experiment(write(tmp_path, SMALL + SILOS + setting("x", "fedse", GUARD + extra)))
    (run,) = loaded.runs(base_dir=BASE, base_sha256=base_sha256(BASE))
    return run


def facts(result):
    rows = [{k: v for k, v in row.items() if k != "wall_s"} for row in result.rows]
    return rows, [t.tobytes() for adapter in result.adapters for t in adapter.values()]


def quiet(*_):
    pass


def test_honest_silos_veto_what_their_guards_refuse_and_serve_the_base(tmp_path, monkeypatch):
    """The whole way with the shipped base; only what the figures come to is set beforehand."""
    monkeypatch.setattr(judging, "outcome_of", lambda *_: Outcome.VIOLATIONS)
    worked = []
    evolve = Member.evolve

    def noted(member, *arguments, **rest):
        worked.append((rest["round_number"], member.indices[0]))
        return evolve(member, *arguments, **rest)

    monkeypatch.setattr(Member, "evolve", noted)
    run = guarded(tmp_path, ATTACK)
    result = play_run(run, tmp_path / "run", progress=quiet)
    rounds = {row["round"]: row for row in result.rows if row["kind"] == "round"}
    # In rounds 2 and 4 the attacker alone works; round 3 goes back to the start.
    assert worked == [(1, 0), (1, 1), (1, 2), (2, 1), (4, 1)]
    assert rounds[1]["vetoes"] == pytest.approx(0.0, abs=0.05)
    assert rounds[2]["vetoes"] == pytest.approx(2 / 3, abs=0.05)
    assert (rounds[3]["vetoes"], rounds[3]["restored_round"]) == (None, 0)
    assert rounds[3]["episodes"] == {}
    assert rounds[2]["episodes"] == {"craft": 8}
    # Each honest silo serves the base at the end; the attacker serves what it likes.
    served = [row for row in result.rows if row["kind"] == "eval" and row["scope"] == "personal"]
    assert {row["silo"] for row in served} == {0, 2}
    text = SMALL + SILOS + setting("base", "pretrained")
    (bare,) = load_experiment(write(tmp_path, text)).runs(
        base_dir=BASE, base_sha256=base_sha256(BASE)
    )
    plain = play_run(bare, tmp_path / "bare", progress=quiet).rows
    outcomes = {(r["silo"], r["label"]): r["outcomes"] for r in plain if r["kind"] == "eval"}
    assert all(row["outcomes"] == outcomes[row["silo"], row["label"]] for row in served)
    # What the vetoed round and the one after it added is the attacker's alone.
    first = initial_adapter(BASE, run.rank, run.alpha, run.seed)
    assert any((result.adapters[0][name] != first[name]).any() for name in first)


class EndedError(Exception):
    """What stands for a kill inside the process."""


@pytest.mark.long
def test_a_guarded_run_that_was_ended_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "outcome_of", lambda *_: Outcome.SUCCESS)
    run = guarded(tmp_path)
    whole = play_run(run, tmp_path / "whole", progress=quiet)

    def states():
        return RunStates(directory=tmp_path / "kept", run=run, versions={}, say=quiet)

    def ended(number, *_):
        # The run has stopped, and the rollback is still to come.
        if number == 2:
            raise EndedError

    with pytest.raises(EndedError):
        play_run(run, tmp_path / "first", progress=ended, states=states())
    assert facts(play_run(run, tmp_path / "rest", progress=quiet, states=states())) == facts(whole)


@pytest.mark.long
def test_a_guard_that_judges_by_figures_serves_what_it_passed(tmp_path):
    run = guarded(tmp_path).model_copy(
        update={"guard": GuardTable(tasks=8, base_tries=1, tau=1, violations=1)}
    )
    rows = play_run(run, tmp_path / "run", progress=quiet).rows
    assert all(row["restored_round"] is None for row in rows if row["kind"] == "round")
    by_scope = {
        scope: {
            (row["silo"], row["label"]): row["outcomes"]
            for row in rows
            if row["kind"] == "eval" and row["scope"] == scope
        }
        for scope in ("global", "personal")
    }
    served = by_scope["personal"]
    assert {silo for silo, _ in served} == {0, 1, 2}
    assert all(by_scope["global"][key] == outcomes for key, outcomes in served.items())


@pytest.mark.parametrize(
    ("method", "extra", "said"),
    [
        ("fedse", "guard = {}", "noise.z is above 0"),
        ("fedse_personal", GUARD, "do not all serve one shared adapter"),
        ("local_evolution", GUARD, "do not all serve one shared adapter"),
        ("fedse", GUARD + 'aggregation = { method = "rolora" }', "aggregation.method"),
        ("fedse", GUARD + 'aggregation = { server_optimiser = "adam" }', "server_optimiser"),
        ("fedse", "noise = { z = 0.003 }\nguard = { task = 8 }", "nearest valid key is 'tasks'"),
    ],
)
def test_settings_that_cannot_have_guards_are_refused(tmp_path, method, extra, said):
    with pytest.raises(ExperimentFileError, match=said):
        runs(tmp_path, SMALL + SILOS + setting("x", method, extra))


def test_a_setting_without_guards_keeps_its_digest(tmp_path):
    text = SMALL + SILOS + setting("x", "fedse", "noise = { z = 0.003 }")
    (run,) = runs(tmp_path, text)
    assert "guard" not in run.described()
    (other,) = runs(tmp_path, SMALL + SILOS + setting("x", "fedse", GUARD))
    assert other.sha256 != run.sha256
