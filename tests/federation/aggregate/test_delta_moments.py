"""Server optimisers over deltas: the papers' algorithms stated plainly, noise, and their replay."""

from __future__ import annotations

import math

import numpy as np
import pytest

from federation.adapter.layout import Layout
from federation.aggregate.registry import make_optimiser
from federation.chain.replay import replay, replay_start
from federation.chain.sums import least_noise_variance, mean_of_release
from federation.errors import OptimiserStateError, UpdateError
from federation.plan.read import read_plan
from tests.kit.federation.adapters import lora, plan_of, record_plan
from tests.kit.federation.histories import NAMES, history
from tests.kit.federation.records import by_part
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
ADAPTIVE = [name for name in NAMES if name != "fedavgm"]


def plain(name: str, deltas: list[np.ndarray], variance: float = 0.0) -> list[list[float]]:
    """Algorithm 2 of arXiv 2003.00295 (fedavgm: momentum) in Python floats, one by one."""
    size, tau = len(deltas[0]), 1e-3
    m, v, moves = [0.0] * size, [tau * tau] * size, []
    for delta in deltas:
        move = []
        for i, d in enumerate(map(float, delta)):
            if name == "fedavgm":
                m[i] = 0.9 * m[i] + d
                move.append(m[i])
                continue
            m[i] = 0.9 * m[i] + (1 - 0.9) * d
            s = d * d - variance
            if name == "fedadagrad":
                v[i] = v[i] + s
            elif name == "fedadam":
                v[i] = 0.99 * v[i] + (1 - 0.99) * s
            else:
                s = max(s, 0.0)
                v[i] = v[i] - (1 - 0.99) * s * ((v[i] > s) - (v[i] < s))
            v[i] = max(v[i], tau * tau)
            move.append(m[i] / (math.sqrt(v[i]) + tau))
        moves.append(move)
    return moves


def deltas(rounds: int, size: int = 6, seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.normal(size=size) * 10.0 ** draw.integers(-5, 1, size) for _ in range(rounds)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variance", [0.0, 1e-4])
def test_moves_are_the_algorithms_bit_for_bit(name, variance):
    means = deltas(30)
    optimiser = make_optimiser(name)
    for number, expected in enumerate(plain(name, means, variance), start=1):
        move = optimiser.move(
            means[number - 1], round_number=number, step=0, noise_variance=variance
        )
        assert move.shape == (6,)
        assert move[:].tolist() == expected
        assert move[2:5].tolist() == expected[2:5]


def test_the_first_moves_by_hand():
    """Delta 0.1 after v = 1e-6: m = 0.01, and v is 0.010001, 1.01e-4 or (1 - 0.99)*0.01 more."""
    delta = np.array([0.1, 0.0])
    expected = {
        "fedavgm": 0.1,
        "fedadagrad": 0.01 / (math.sqrt(0.010001) + 1e-3),
        "fedyogi": 0.01 / (math.sqrt(1.01e-4) + 1e-3),
        "fedadam": 0.01 / (math.sqrt(0.99e-6 + 1e-4) + 1e-3),
    }
    for name in NAMES:
        move = make_optimiser(name).move(delta, round_number=1, step=0)
        assert move[:][0] == pytest.approx(expected[name], rel=1e-12)
        assert move[:][1] == 0.0


@pytest.mark.parametrize("name", ADAPTIVE)
def test_known_noise_does_not_pass_for_signal(name):
    """Delta of pure noise: v, less the noise's part, stays far below the noise's variance."""
    draw, sigma, size = np.random.default_rng(3), 0.05, 4000
    told, untold = make_optimiser(name), make_optimiser(name)
    for number in range(1, 200):
        noise = draw.normal(size=size) * sigma
        told.move(noise, round_number=number, step=0, noise_variance=sigma**2)
        untold.move(noise, round_number=number, step=0)
    corrected, raw = (float(np.median(o._newest.second)) for o in (told, untold))
    assert corrected >= 1e-6
    assert corrected < raw / 1.5
    assert told._newest.second.min() >= 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_a_state_is_left_and_taken_up_but_its_own_release_is_not_taken_again(name):
    means = deltas(4)
    first, second = make_optimiser(name), make_optimiser(name)
    assert first.newest is None
    for number, mean in enumerate(means[:3], start=1):
        first.move(mean, round_number=number, step=0)
    second.go_on_after(first.newest)
    # What was before the newest release is not known here: repeating it would begin with zeros.
    assert first.is_ready_for(3, 0)
    assert not second.is_ready_for(3, 0)
    with pytest.raises(OptimiserStateError, match="replay"):
        second.move(means[2], round_number=3, step=0)
    moves = [o.move(means[3], round_number=4, step=0) for o in (first, second)]
    assert moves[0][:].tobytes() == moves[1][:].tobytes()
    again = second.move(means[3], round_number=4, step=0)
    assert again[:].tobytes() == moves[1][:].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_state_crosses_rounds_and_releases_come_in_order(name):
    means = deltas(5)
    optimiser = make_optimiser(name)
    assert optimiser.is_ready_for(1, 0)
    assert not optimiser.is_ready_for(2, 0)
    with pytest.raises(OptimiserStateError, match="nowhere"):
        optimiser.move(means[0], round_number=2, step=0)
    optimiser.move(means[0], round_number=1, step=0)
    for place in ((3, 0), (2, 1), (1, 1)):
        assert not optimiser.is_ready_for(*place)
        with pytest.raises(OptimiserStateError, match="replay"):
            optimiser.move(means[1], round_number=place[0], step=place[1])
    with pytest.raises(UpdateError, match="length"):
        optimiser.move(np.zeros(7), round_number=2, step=0)
    with pytest.raises(UpdateError, match="not finite"):
        optimiser.move(np.full(6, np.nan), round_number=2, step=0)
    # A refused or repeated release does not count twice, a skipped one not at all.
    optimiser.move(means[3], round_number=2, step=0)
    optimiser.move(means[1], round_number=2, step=0)
    optimiser.skip(round_number=3, step=0)
    optimiser.skip(round_number=3, step=0)
    move = optimiser.move(means[2], round_number=4, step=0)
    assert move[:].tolist() == plain(name, means[:3])[-1]
    # The run's first release begins anew.
    move = optimiser.move(means[4], round_number=1, step=0)
    assert move[:].tolist() == plain(name, means[4:])[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_of_the_run_gives_the_state_that_was_lived_through(name):
    plan = plan_of("fedavg", optimiser=name)
    dimension = plan.aggregator(Layout.from_tensors(lora(0))).shared_layout(1).dimension
    releases = history(plan, dimension, 6)
    lived, rebuilt = plan.optimiser(), plan.optimiser()
    means = []
    for record, total in releases[:5]:
        if total is None:
            lived.skip(round_number=record.round, step=0)
        else:
            means.append(mean_of_release(plan, total[:dimension], 3))
            lived.move(means[-1], round_number=record.round, step=0)
    assert replay_start(rebuilt, plan, 6) == 1
    replay(rebuilt, plan=plan, round_number=6, dimension=dimension, releases=by_part(releases[:5]))
    means.append(mean_of_release(plan, releases[5][1][:dimension], 3))
    moves = [one.move(means[-1], round_number=6, step=0)[:] for one in (lived, rebuilt)]
    np.testing.assert_array_equal(*moves)
    assert moves[0].tolist() == plain(name, [mean[:] for mean in means])[-1]
    for broken in (releases[1:3], [releases[0], releases[2]]):
        with pytest.raises(UpdateError, match="cannot be replayed"):
            replay(
                plan.optimiser(),
                plan=plan,
                round_number=6,
                dimension=dimension,
                releases=by_part(broken),
            )


def test_the_least_noise_is_that_of_the_plan():
    """(z·C/K)²: none without noise, the silo noise on top of a local one, a unit's of gradients."""
    silo = EXAMPLES / "plan-silo-dp.toml"
    plan = read_plan(silo.read_bytes())
    z, clip = plan.privacy.noise_multiplier, plan.privacy.clip_l2
    assert z > 0.0
    assert least_noise_variance(plan, 5) == pytest.approx((z * clip / 5) ** 2)
    assert least_noise_variance(plan_of("fedavg"), 3) == 0.0
    assert least_noise_variance(record_plan("record_local"), 3) == 0.0
    gradients = record_plan("record_distributed")
    expected = (gradients.privacy.noise_multiplier * gradients.privacy.clip_l2 / (3 * 8)) ** 2
    assert least_noise_variance(gradients, 3) == pytest.approx(expected)
    with pytest.raises(UpdateError):
        least_noise_variance(plan_of("fedavg"), 0)
