"""Plans that fit: sized over a grid, written, read, charged; what cannot fit says what would."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import NamedTuple

import pytest

from dp.accounting.charge import run_charges
from dp.accounting.compose import epsilon_of
from dp.config import RECORD_MODES, Mode
from federation.errors import PlanError
from federation.forecast.doubts import doubts
from federation.forecast.forecast import forecast_plan
from federation.forecast.proposal import Base, write_plan
from federation.forecast.sizing import LEAST_DIMENSION, MIN_COSINE, Size, Wish, size_of
from federation.plan.plan import Plan
from secagg.parameters import Parameters

HERE = Base(name="lab/base_model", sha256="ab" * 32, counted=True)
GRID = list(itertools.product(Mode, (3, 10, 120), (80, 2400, 40_000), (0.5, 8.0)))
MORE = re.compile(r"--(epsilon|episodes|silos|rounds) ([\d.]+)")


class Written(NamedTuple):
    size: Size
    text: str
    plan: Plan


def wish(**changes: object) -> Wish:
    usual = Wish(
        silos=3,
        episodes=80,
        epsilon=8.0,
        delta=1e-5,
        mode=Mode.RECORD_LOCAL,
        colluding=1,
        rounds=3,
        tries=4,
        dimension=LEAST_DIMENSION,
    )
    return replace(usual, **changes)


def written(asked: Wish, environments: tuple[str, ...] = ("craft",)) -> Written:
    size = size_of(asked)
    text, plan = write_plan(size, name="plan", base=HERE, environments=environments)
    return Written(size, text, plan)


def epsilon_by_the_accountant(plan: Plan, noise: float = 1.0) -> float:
    """What a ledger charges for the whole run, with so many times the noise."""
    spec = replace(plan.spec, noise_multiplier=noise * plan.spec.noise_multiplier)
    charges = run_charges(spec, releases=plan.charged_releases, first_steps=plan.first_steps)
    return epsilon_of(charges, spec.delta)["task" if spec.record else "silo"]


@pytest.mark.parametrize(
    ("mode", "silos", "episodes", "epsilon"), GRID, ids=lambda value: f"{value:g}"[:12]
    if isinstance(value, float | int)
    else value.value,
)  # fmt: skip
def test_a_plan_that_is_written_is_read_and_fits_or_says_what_would(mode, silos, episodes, epsilon):
    asked = wish(
        mode=mode, silos=silos, episodes=episodes, epsilon=None if mode is Mode.NONE else epsilon
    )
    try:
        size, text, plan = written(asked)
    except PlanError as error:
        assert mode is not Mode.NONE
        (problem,) = error.problems
        assert "does not fit" in problem
        for key, value in MORE.findall(problem.partition(": use ")[2])[:1]:
            other = replace(asked, **{key: type(getattr(asked, key))(float(value))})
            assert size_of(other).cosine >= MIN_COSINE
        return
    forecast = forecast_plan(plan, silos=silos, colluding=1, dimension=asked.dimension)
    assert forecast.refusals == ()
    assert doubts(plan, base_sha256="ab" * 32) == ()
    # Quorum and n_min against the protocol's own sizes.
    sizes = Parameters(n=silos, c=1, n_min=plan.secure_aggregation.n_min)
    assert sizes.t == sizes.least_survivors == size.threshold
    assert silos >= (plan.rounds.quorum or 0) >= sizes.t
    assert plan.evolve.episodes_per_round == episodes
    assert (plan.privacy.record is not None) is (mode in RECORD_MODES)
    if mode is Mode.NONE:
        return
    spent = epsilon_by_the_accountant(plan)
    assert spent <= epsilon < epsilon_by_the_accountant(plan, noise=0.98)
    assert spent == pytest.approx(size.epsilon)
    assert forecast.predicted_cosine == pytest.approx(size.cosine)
    assert size.cosine >= MIN_COSINE
    assert f"ε = {size.epsilon:.4g}" in text.replace("\n# ", " ")


def test_every_value_has_a_comment():
    for mode in Mode:
        asked = wish(mode=mode, silos=100, epsilon=None if mode is Mode.NONE else 8.0)
        lines = written(asked).text.splitlines()
        assert max(map(len, lines)) <= 100
        for before, line in itertools.pairwise(lines):
            if " = " in line and not line.startswith(("#", "name")):
                assert before.startswith("#"), (mode, line)


def test_the_dimension_that_a_plan_says_it_carries_is_the_last_it_carries():
    for mode in RECORD_MODES:
        most = size_of(wish(mode=mode)).most_dimension
        assert most is not None
        plan = written(wish(mode=mode, dimension=most)).plan
        assert forecast_plan(plan, silos=3, colluding=1, dimension=most).refusals == ()
        with pytest.raises(PlanError, match="does not fit"):
            size_of(wish(mode=mode, dimension=most + 2))


def test_large_rounds_are_sampled_and_the_ring_is_kept():
    """Fewer tasks a step where there are many, and a coarser grid where all of them are summed."""
    local, shared = (
        written(wish(mode=mode, silos=50, episodes=40_000)).plan
        for mode in (Mode.RECORD_LOCAL, Mode.RECORD_DISTRIBUTED)
    )
    for plan in (local, shared):
        record = plan.privacy.record
        assert record is not None
        assert (record.sampling_rate, record.steps_per_round) == (0.125, 16)
        assert record.expected_units == 2500
    assert shared.privacy.grid < local.privacy.grid


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"silos": 2}, "use --silos 3"),
        ({"silos": 300}, "use --silos 200"),
        ({"colluding": 2}, "no quorum is possible.*use --silos 4, or --colluding 1"),
        ({"colluding": 0}, "use --colluding 1"),
        ({"episodes": 82}, "use --episodes 80, or --episodes 84, or --tries 1"),
        ({"episodes": 2}, "use --episodes 4, or --tries 1"),
        ({"episodes": 0}, "use --episodes 4, or --tries 1"),
        ({"episodes": -9}, "use --episodes 4"),
        ({"episodes": 1_000_000}, "use --episodes 100000"),
        ({"delta": 0.0}, "use --delta 1e-5"),
        ({"epsilon": -1.0}, "use --epsilon 8"),
        ({"epsilon": float("nan")}, "use --epsilon 8"),
        ({"epsilon": None}, "use --epsilon 8"),
        ({"mode": Mode.NONE}, "leave --epsilon out"),
        ({"mode": Mode.SILO}, "use --silos 59, or --mode record_local"),
        ({"epsilon": 1.0}, "use --epsilon 6.6, or --episodes 428, or --silos 86"),
        (
            {"mode": Mode.RECORD_DISTRIBUTED, "episodes": 100_000, "rounds": 10_000},
            "has at most 10000: use --rounds 625",
        ),
    ],
)
def test_what_cannot_fit_says_which_number_to_change_and_to_what(changes, told):
    with pytest.raises(PlanError, match=told):
        size_of(wish(**changes))


def test_a_name_that_no_plan_takes_is_refused_and_one_with_quotes_is_written():
    with pytest.raises(PlanError, match=r"evolve\.environments"):
        written(wish(), environments=('maze"]\nmode = "none',))
    text, plan = write_plan(
        size_of(wish()),
        name="plan",
        base=replace(HERE, name='C:\\models\\"old" é'),
        environments=("craft", "openenv:calendar"),
    )
    assert plan.model.base == 'C:\\models\\"old" é'
    assert plan.evolve.environments == ("craft", "openenv:calendar")
    assert text.startswith("# One run")
