"""Server optimisers: Adam against a plain statement of it, its state, and how it is rebuilt."""

from __future__ import annotations

import math

import numpy as np
import pytest

from federation.adapter.encoding import TILE
from federation.adapter.layout import Layout
from federation.aggregate.adam import Adam
from federation.aggregate.registry import GRADIENT_OPTIMISERS, OPTIMISERS, make_optimiser
from federation.chain.record import AdapterRecord
from federation.chain.replay import replay
from federation.chain.sums import encode_sum, mean_of_release, sum_sha256
from federation.errors import OptimiserStateError, UpdateError
from tests.kit.federation.adapters import lora, plan_of, record_plan
from tests.kit.federation.records import by_part, one_sum, resummed

PLAN = record_plan("record_distributed", steps=6)
DIMENSION = PLAN.aggregator(Layout.from_tensors(lora(0))).shared_layout(1).dimension
SILOS = ("ant", "bee", "cat")
FIGURES = 2


def gradients(steps: int, size: int = 5, seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.normal(size=size) * 10.0 ** draw.integers(-6, 3) for _ in range(steps)]


def plain_adam(means: list[np.ndarray]) -> list[list[float]]:
    """Algorithm 1 of arXiv 1412.6980 in Python floats, coordinate by coordinate."""
    moves = []
    first, second = [0.0] * len(means[0]), [0.0] * len(means[0])
    power_1 = power_2 = 1.0
    for mean in means:
        power_1, power_2 = power_1 * 0.9, power_2 * 0.999
        move = []
        for i, g in enumerate(map(float, mean)):
            first[i] = 0.9 * first[i] + (1 - 0.9) * g
            second[i] = 0.999 * second[i] + (1 - 0.999) * (g * g)
            root = math.sqrt(second[i] / (1 - power_2))
            move.append((first[i] / (1 - power_1)) / (root + 1e-8))
        moves.append(move)
    return moves


def test_adam_is_the_stated_arithmetic_bit_for_bit():
    """Python floats are IEEE 754 binary64: an independent statement of the same formula."""
    means = gradients(40)
    optimiser = Adam()
    for step, (mean, expected) in enumerate(zip(means, plain_adam(means), strict=True)):
        move = optimiser.move(mean, round_number=1, step=step)
        assert move.shape == mean.shape
        assert move[:].tolist() == expected


def test_moves_are_the_same_in_slices_across_tiles():
    size = 2 * TILE + 5
    means = gradients(2, size)
    optimiser = Adam()
    for step, mean in enumerate(means):
        move = optimiser.move(mean, round_number=1, step=step)
    parts = [move[start : start + 1000] for start in range(0, size, 1000)]
    np.testing.assert_array_equal(np.concatenate(parts), move[:])
    picked = [0, TILE - 1, TILE, 2 * TILE, size - 1]
    expected = plain_adam([mean[picked] for mean in means])[-1]
    assert move[:][picked].tolist() == expected


def test_the_first_move_has_the_size_of_the_learning_rate():
    move = Adam().move(np.array([3.0, -1e-3, 0.0]), round_number=4, step=0)
    np.testing.assert_allclose(move[:], [1.0, -1.0, 0.0], atol=2e-5)


def test_the_state_is_that_of_one_round():
    """A round begins like the first, also when the factor that is trained has changed its size."""
    optimiser = Adam()
    for step, mean in enumerate(gradients(3, size=4)):
        optimiser.move(mean, round_number=1, step=step)
    means = gradients(2, size=9, seed=3)
    expected = plain_adam(means)
    for step, mean in enumerate(means):
        assert optimiser.move(mean, round_number=2, step=step)[:].tolist() == expected[step]


def test_the_newest_release_can_be_taken_again():
    """A write or a check may fail after the optimiser moved on; nothing may count twice."""
    means = gradients(4)
    expected = plain_adam(means)
    optimiser = Adam()
    for step, mean in enumerate(means):
        wrong = optimiser.move(mean * 7.0 + 1.0, round_number=1, step=step)
        assert wrong[:].tolist() != expected[step]
        for _ in range(2):
            move = optimiser.move(mean, round_number=1, step=step)
            assert move[:].tolist() == expected[step]


def test_an_older_move_keeps_its_values():
    means = gradients(3)
    optimiser = Adam()
    first = optimiser.move(means[0], round_number=1, step=0)
    for step in (1, 2):
        optimiser.move(means[step], round_number=1, step=step)
    assert first[:].tolist() == plain_adam(means)[0]


@pytest.mark.parametrize("place", [(1, 3), (2, 2), (1, 0 + 4), (2, 1)])
def test_a_release_out_of_order_asks_for_a_replay(place):
    optimiser = Adam()
    for step, mean in enumerate(gradients(2)):
        optimiser.move(mean, round_number=1, step=step)
    assert optimiser.is_ready_for(1, 2)
    assert not optimiser.is_ready_for(*place)
    with pytest.raises(OptimiserStateError, match="replay"):
        optimiser.move(np.zeros(5), round_number=place[0], step=place[1])
    with pytest.raises(OptimiserStateError, match="replay"):
        optimiser.skip(round_number=place[0], step=place[1])
    with pytest.raises(OptimiserStateError, match="nowhere"):
        Adam().move(np.zeros(5), round_number=1, step=1)


def test_a_skipped_release_does_not_count():
    means = gradients(2)
    expected = plain_adam(means)
    optimiser = Adam()
    optimiser.skip(round_number=1, step=0)
    assert optimiser.move(means[0], round_number=1, step=1)[:].tolist() == expected[0]
    optimiser.skip(round_number=1, step=2)
    optimiser.skip(round_number=1, step=2)
    assert optimiser.move(means[1], round_number=1, step=3)[:].tolist() == expected[1]


def test_means_that_are_no_gradient_are_refused_and_leave_the_state():
    means = gradients(2)
    optimiser = Adam()
    optimiser.move(means[0], round_number=1, step=0)
    for bad in (np.array([np.nan] * 5), np.array([np.inf] * 5), np.array([1e200] * 5)):
        with pytest.raises(UpdateError, match="not finite"), np.errstate(all="ignore"):
            optimiser.move(bad, round_number=1, step=1)
    with pytest.raises(UpdateError, match="length"):
        optimiser.move(np.zeros(6), round_number=1, step=1)
    expected = plain_adam(means)[1]
    assert optimiser.move(means[1], round_number=1, step=1)[:].tolist() == expected


@pytest.mark.parametrize("name", ["fedavg", "sgd"])
def test_plain_optimisers_hand_the_mean_on(name):
    optimiser, mean = make_optimiser(name), np.ones(3)
    assert optimiser.name == name
    assert optimiser.move(mean, round_number=9, step=7) is mean
    assert optimiser.is_ready_for(1, 5)
    optimiser.skip(round_number=1, step=5)


def test_the_registry_is_complete():
    across = {"fedavgm", "fedadagrad", "fedyogi", "fedadam"}
    assert set(OPTIMISERS) == {"fedavg", "sgd", "adam"} | across
    assert {name for name, cls in OPTIMISERS.items() if cls.crosses_rounds} == across
    assert {"sgd", "adam"} == GRADIENT_OPTIMISERS
    assert all(cls.name == name for name, cls in OPTIMISERS.items())
    with pytest.raises(ValueError, match="optimiser"):
        make_optimiser("lion")
    assert PLAN.optimiser().name == "adam"
    assert plan_of("fedavg").optimiser().name == "fedavg"


def releases(count: int) -> list[tuple[AdapterRecord, np.ndarray | None]]:
    """Records of a round with their sums, the second of them skipped."""
    draw, made = np.random.default_rng(6), []
    for step in range(count):
        total = draw.integers(-(2**20), 2**20, DIMENSION + FIGURES).astype(np.int32)
        skipped = step == 1
        record = AdapterRecord(
            run_id="run",
            round=3,
            step=step,
            kind="skipped" if skipped else "aggregated",
            adapter_sha256=b"a" * 32,
            plan_sha256=b"p" * 32,
            base_model_sha256=b"b" * 32,
            parent_sha256=b"a" * 32,
            record_parent_sha256=b"r" * 32,
            parts=()
            if skipped
            else one_sum(sum_sha256=sum_sha256(encode_sum(total)), survivors=SILOS),
        )
        made.append((record, None if skipped else total))
    return made


def test_a_replay_gives_the_state_that_was_lived_through():
    history = releases(6)
    lived, rebuilt = PLAN.optimiser(), PLAN.optimiser()
    for record, total in history[:5]:
        if total is None:
            lived.skip(round_number=3, step=record.step)
        else:
            lived.move(
                mean_of_release(PLAN, total[:DIMENSION], 3), round_number=3, step=record.step
            )
    # Whatever a silo followed before does not matter.
    rebuilt.move(np.ones(4), round_number=1, step=0)
    replay(rebuilt, plan=PLAN, round_number=3, dimension=DIMENSION, releases=by_part(history[:5]))
    assert rebuilt.is_ready_for(3, 5)
    mean = mean_of_release(PLAN, history[5][1][:DIMENSION], 3)
    moves = [one.move(mean, round_number=3, step=5)[:] for one in (lived, rebuilt)]
    np.testing.assert_array_equal(*moves)
    assert np.any(moves[0])


def test_a_replay_takes_nothing_but_the_sums_of_the_records():
    history = releases(3)
    other = history[2][1].copy()
    other[0] += 1
    short = history[2][1][: DIMENSION - 1]
    named = resummed(history[2][0], sum_sha256=sum_sha256(encode_sum(short)))
    for broken in (
        history[1:],
        [history[0], history[2]],
        [history[0], history[0]],
        [*history[:2], (history[2][0], None)],
        [*history[:2], (history[2][0], other)],
        [*history[:2], (named, short)],
    ):
        with pytest.raises(UpdateError):
            replay(
                PLAN.optimiser(),
                plan=PLAN,
                round_number=3,
                dimension=DIMENSION,
                releases=by_part(broken),
            )


def test_a_mean_of_gradients_is_over_silos_and_expected_units():
    total = np.full(4, 2**16 * 24, dtype=np.int64)
    # 24 gradients of length C on a grid of 2^16 steps, three silos, eight expected units each.
    mean = mean_of_release(PLAN, total, 3)
    np.testing.assert_array_equal(mean[:], np.full(4, PLAN.privacy.clip_l2))
    local = record_plan("record_local")
    mean = mean_of_release(local, np.full(4, 3 * 2**20, dtype=np.int64), 3)
    np.testing.assert_array_equal(mean[:], np.full(4, 2.0))
