"""``[vetoes]``: where it may stand, the coordinate that it adds, and when noise would hide it."""

import pytest

from dp.noise.metrics_block import MetricsBlock
from federation.chain.sums import metrics_layout
from federation.errors import PlanError
from federation.forecast.forecast import forecast_plan
from federation.plan.read import read_plan
from federation.plan.rules import problems_of_time
from tests.kit.server.world_plan import EPISODES, FAMILY, plan_toml

NOISE = {"mode": "silo", "noise": 0.05}
SILOS = {f"silo-{k}": (FAMILY,) for k in range(4)}


def plan(vetoes="", **settings):
    return read_plan(plan_toml(**{**NOISE, **settings, "vetoes": vetoes}))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"mode": "none", "noise": 0.0}, "vetoes: mode 'none': without noise a sum of vetoes says"),
        (
            {"mode": "record_local", "steps": 2, "delta_clip": 2.0},
            "vetoes: mode 'record_local': a site's probes are no unit",
        ),
        (
            {"mode": "record_distributed", "steps": 2, "optimiser": "adam"},
            "vetoes: mode 'record_distributed': a site's probes are no unit",
        ),
    ],
)
def test_only_noise_for_a_whole_silo_hides_a_veto(settings, why):
    with pytest.raises(PlanError) as caught:
        plan(**settings)
    assert any(problem.startswith(why) for problem in caught.value.problems)


@pytest.mark.parametrize("key", ["share = 0.0", "share = 1.1", "errors = 0.5", "veto = 1"])
def test_keys_have_bounds(key):
    with pytest.raises(PlanError):
        plan(key)


def test_a_silo_that_works_on_nothing_must_not_be_ready_sooner():
    assert problems_of_time(plan()) == ()
    soon = plan_toml(**NOISE, vetoes="").replace(b"ready_after_s = 1", b"")
    (problem,) = problems_of_time(read_plan(soon))
    assert problem.startswith("rounds.ready_after_s: a silo whose guard refuses an adapter")


def test_one_coordinate_more_between_the_norm_and_the_counts():
    without = metrics_layout(read_plan(plan_toml(**NOISE)), SILOS, t=3, n_min=3)
    found = metrics_layout(plan(), SILOS, t=3, n_min=3)
    assert found.names == (without.names[0], "vetoes", *without.names[1:])
    assert found.bounds == (without.bounds[0], 1.0, EPISODES, EPISODES)
    # A veto is all that the coordinate can hold, and nothing of it less than a whole.
    block = MetricsBlock.of(*found)
    values = dict.fromkeys(found.names, 0.0)
    assert block.encode({**values, "vetoes": 7.0})[1] == block.scale
    assert not block.encode(values).any()


def forecast(read):
    return forecast_plan(read, silos=4, colluding=1, dimension=48).refusals


def test_a_run_that_noise_would_never_let_pause_does_not_start():
    """Three silos' noise of z = 0.5 on four coordinates moves a mean of four by about 0.3."""
    assert not forecast(plan())
    (refusal,) = forecast(plan(noise=0.5, vetoes="errors = 5.0"))
    assert refusal.startswith("vetoes: noise moves the mean by 0.")
    assert not forecast(plan(noise=0.5, vetoes="errors = 1.0"))
