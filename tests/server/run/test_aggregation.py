"""One sum applied, against the same computation in plain floats; and sums that are not applied."""

import hashlib
import math

import numpy as np
import pytest

from dp.noise import dgauss
from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import per_silo_sigma
from dp.noise.source import NoiseSource
from federation.adapter.encoding import decode_adapter
from federation.adapter.layout import Layout
from federation.chain.sums import success_ratios
from federation.errors import FederationError
from secagg.descriptor import AggregationId
from server.errors import QuarantinedSumError
from server.run.aggregation import NOISE_TAIL, aggregate
from server.run.descriptor import build_descriptor
from tests.kit.secagg.secagg_samples import make_roster, signed_roster, silo_names
from tests.kit.server import world as sw

NAMES = silo_names(4)
PINNED_ADAPTER = "aa060db9252bcca7218680832c4874f5969f18fa7f0e94bb4bcd4855aa50c20b"


def descriptor_of(plan, *, ready=NAMES, families=("constant",), silos=4):
    return build_descriptor(
        identity=AggregationId(run_id="run", round=1, step=0, part=0, attempt=1),
        plan=plan,
        plan_sha256=bytes(32),
        roster=signed_roster(make_roster(silos)),
        ready=dict.fromkeys(ready, families),
        adapter=sw.INITIAL,
        adapter_sha256=bytes(32),
        now_unix_s=100,
    )


def summed(descriptor, deltas, successes, *, noise=0.0, seed=0):
    """What unmasking yields: grid-encoded deltas and metrics, plus noise, modulo 2^32."""
    grid = Grid(clip_l2=sw.CLIP, steps=sw.GRID, dimension=descriptor.dimension)
    layout = descriptor.metrics
    block = MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid)
    total = np.zeros(descriptor.words, dtype=np.int64)
    for delta, solved in zip(deltas, successes, strict=True):
        norm = min(float(np.linalg.norm(delta)), sw.CLIP)
        figures = {
            "update_norm_sq": norm**2,
            "episodes/constant": 64.0,
            "successes/constant": float(solved),
        }
        total[: descriptor.dimension] += grid.encode(delta.astype(np.float32))
        total[descriptor.dimension :] += block.encode(figures)
    draw = np.random.default_rng(seed)
    total[: descriptor.dimension] += np.rint(draw.normal(size=descriptor.dimension) * noise).astype(
        np.int64
    )
    return (total % 2**32).astype(np.uint32)


def deltas(scale=0.5, seed=1):
    draw = np.random.default_rng(seed)
    return [draw.normal(size=sw.DIMENSION) * scale for _ in NAMES]


def applied(plan, total, descriptor, survivors=NAMES):
    return aggregate(
        plan=plan,
        previous=sw.INITIAL,
        total=total,
        descriptor=descriptor,
        survivors=survivors,
        optimiser=plan.optimiser(),
    )


def test_the_next_adapter_is_the_plain_average():
    plan = sw.parsed(sw.plan_toml())
    descriptor, parts = descriptor_of(plan), deltas()
    result = applied(plan, summed(descriptor, parts, [8, 16, 24, 32]), descriptor)
    mean = np.mean(parts, axis=0)
    layout = Layout.from_tensors(sw.initial_tensors())
    found = decode_adapter(b"".join(result.adapter), max_bytes=1 << 20)
    for name, part in layout.unflatten(mean).items():
        np.testing.assert_allclose(found[name], sw.initial_tensors()[name] + part, atol=2e-5)
    norms_sq = np.mean([np.linalg.norm(part) ** 2 for part in parts])
    mean_sq = float(np.linalg.norm(mean)) ** 2
    assert result.update_norm == pytest.approx(math.sqrt(mean_sq), rel=1e-4)
    assert result.kappa == pytest.approx(mean_sq / norms_sq, rel=1e-2)
    assert result.zeta_sq == pytest.approx(norms_sq - mean_sq, rel=1e-2)
    assert result.success["constant"].mean == pytest.approx(80 / 256, abs=1e-4)
    assert result.descriptor_sha256 == descriptor.sha256
    assert len(result.sum_bytes) == 4 * descriptor.words


def test_the_mean_is_over_the_survivors_alone():
    plan = sw.parsed(sw.plan_toml())
    descriptor, parts = descriptor_of(plan), deltas()[:3]
    result = applied(plan, summed(descriptor, parts, [64] * 3), descriptor, NAMES[:3])
    expected = float(np.linalg.norm(np.mean(parts, axis=0)))
    assert result.update_norm == pytest.approx(expected, rel=1e-4)
    assert result.success["constant"].mean == pytest.approx(1.0, abs=1e-3)


def test_rolora_changes_only_the_factor_that_was_trained():
    plan = sw.parsed(sw.plan_toml(method="rolora"))
    descriptor = descriptor_of(plan)
    assert 0 < descriptor.dimension < sw.DIMENSION
    part = np.full(descriptor.dimension, 0.25)
    result = applied(plan, summed(descriptor, [part] * 4, [1] * 4), descriptor)
    found = decode_adapter(b"".join(result.adapter), max_bytes=1 << 20)
    moved = [
        name
        for name, tensor in sw.initial_tensors().items()
        if not np.array_equal(found[name], tensor)
    ]
    assert len(moved) == 1
    np.testing.assert_allclose(found[moved[0]] - sw.initial_tensors()[moved[0]], 0.25, atol=1e-5)


def test_noise_is_taken_off_the_agreement_and_named_below_noise():
    plan = sw.parsed(sw.plan_toml(mode="silo", noise=0.02))
    descriptor = descriptor_of(plan)
    sigma = descriptor.noise_sigma * math.sqrt(4)
    assert descriptor.noise_sigma == per_silo_sigma(0.02, sw.GRID, 3, 3, 1)
    same = deltas()[:1] * 4
    loud = applied(plan, summed(descriptor, same, [8] * 4, noise=sigma), descriptor)
    assert loud.kappa == pytest.approx(1.0, abs=0.1)
    quiet = [np.zeros(sw.DIMENSION)] * 4
    silent = applied(plan, summed(descriptor, quiet, [8] * 4, noise=sigma), descriptor)
    assert math.isnan(silent.kappa)
    # What is left is the noise, and it is shown as the norm of what was published.
    expected = sigma / 4 / descriptor.scale * math.sqrt(sw.DIMENSION)
    assert silent.update_norm == pytest.approx(expected, rel=0.5)


def test_all_clipped_silos_in_one_direction_are_possible_and_one_more_is_not():
    plan = sw.parsed(sw.plan_toml())
    descriptor = descriptor_of(plan)
    # Four vectors at the clip in one direction: the most that honest silos can reach.
    direction = np.zeros(sw.DIMENSION)
    direction[0] = sw.CLIP
    largest = summed(descriptor, [direction] * 4, [1] * 4)
    assert applied(plan, largest, descriptor).update_norm == pytest.approx(sw.CLIP, rel=1e-4)
    with pytest.raises(QuarantinedSumError, match="not applied"):
        applied(plan, largest, descriptor, NAMES[:3])
    over = largest.copy()
    over[0] = 4 * sw.GRID + int(NOISE_TAIL) + 1
    with pytest.raises(QuarantinedSumError):
        applied(plan, over, descriptor)


def test_under_noise_a_silo_has_the_noises_own_room_and_not_twelve_times_it():
    """The noise of d coordinates is √d standard deviations long and hardly ever longer."""
    plan = sw.parsed(sw.plan_toml(mode="silo", noise=1.0))
    descriptor = descriptor_of(plan)
    sigma = descriptor.noise_sigma * 2.0
    clips = 4 * sw.GRID
    for length, possible in (
        (clips + sigma * (math.sqrt(sw.DIMENSION) + 0.99 * NOISE_TAIL), True),
        (clips + sigma * (math.sqrt(sw.DIMENSION) + 1.01 * NOISE_TAIL), False),
    ):
        total = summed(descriptor, [np.zeros(sw.DIMENSION)] * 4, [8] * 4)
        total[0] = int(length)
        if possible:
            applied(plan, total, descriptor)
        else:
            with pytest.raises(QuarantinedSumError, match="norm"):
                applied(plan, total, descriptor)


def test_one_silo_of_five_may_turn_the_sum_of_clipped_silos_its_own_way():
    """The bound is the sum's: no vector of one silo is ever seen."""
    plan, names = sw.parsed(sw.plan_toml()), silo_names(5)
    descriptor = descriptor_of(plan, ready=names, silos=5)
    honest = summed(descriptor, list(np.eye(sw.DIMENSION)[:4] * sw.CLIP), [8] * 4)
    room = 5 * sw.GRID
    attack = np.zeros(descriptor.words, dtype=np.int64)
    attack[4] = math.isqrt(room**2 - 4 * sw.GRID**2)
    total = (honest.astype(np.int64) + attack) % 2**32
    result = applied(plan, total.astype(np.uint32), descriptor, names)
    assert result.update_norm == pytest.approx(sw.CLIP, rel=1e-4)
    assert attack[4] / room == pytest.approx(math.sqrt(1 - 4 / 25), rel=1e-4)
    attack[4] *= 1.001
    with pytest.raises(QuarantinedSumError):
        applied(plan, (honest + attack).astype(np.uint32), descriptor, names)


def claimed(descriptor, **figures):
    """Four honest silos' sum with these integers in place of its figures."""
    total = summed(descriptor, deltas(), [8, 16, 24, 32])
    for name, value in figures.items():
        place = descriptor.metrics.names.index(name.replace("_of_", "/"))
        total[descriptor.dimension + place] = value % 2**32
    return total


STEPS = 37837
"""What one silo at the bound of a figure is, in grid units, in a block of three."""


@pytest.mark.parametrize(
    ("figures", "published"),
    [
        pytest.param({"successes_of_constant": 513 * STEPS}, 128.25, id="success of 128.25"),
        pytest.param({"successes_of_constant": -4 * STEPS}, -1.0, id="success of -1"),
        pytest.param({"episodes_of_constant": -1}, math.nan, id="success that is not a number"),
        pytest.param(
            {"episodes_of_constant": STEPS // 8, "successes_of_constant": 4 * STEPS}, 32.0,
            id="each figure possible, and not both",
        ),
        pytest.param({"update_norm_sq": -1}, 80 / 256, id="a negative square"),
        pytest.param({"update_norm_sq": 4 * STEPS + 1}, 80 / 256, id="a square beyond the clip"),
    ],
)  # fmt: skip
def test_figures_that_no_honest_silos_have_are_not_applied(figures, published):
    """One silo chooses the block's sum freely; without noise the honest range is exact."""
    plan = sw.parsed(sw.plan_toml())
    descriptor = descriptor_of(plan)
    layout = descriptor.metrics
    block = MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid)
    assert block.scale == STEPS
    total = claimed(descriptor, **figures)
    # What a reader of the same sum would have been shown.
    said = success_ratios(block.decode(total[descriptor.dimension :].view("<i4").astype(int), 4, 0))
    assert said["constant"].mean == pytest.approx(published, rel=1e-3, nan_ok=True)
    with pytest.raises(QuarantinedSumError, match="not applied"):
        applied(plan, total, descriptor)


def test_all_that_honest_silos_may_say_is_possible():
    """Every episode solved, none solved, none played, all at the clip: at the ends exactly."""
    plan = sw.parsed(sw.plan_toml())
    descriptor = descriptor_of(plan)
    for episodes, successes in ((4, 4), (4, 0), (0, 0)):
        for norm_sq in (0, 4):
            figures = {
                "update_norm_sq": norm_sq * STEPS,
                "episodes_of_constant": episodes * STEPS,
                "successes_of_constant": successes * STEPS,
            }
            applied(plan, claimed(descriptor, **figures), descriptor)


@pytest.mark.parametrize("end", [0, 4])
def test_the_noise_of_honest_silos_is_possible_at_both_ends(end):
    """Exact noise of four silos on figures at an end of their range, thousands of times; the
    largest was some four standard deviations. Beyond twelve no honest silos are."""
    plan = sw.parsed(sw.plan_toml(mode="silo", noise=1.0))
    descriptor = descriptor_of(plan)
    sigma, words = descriptor.metrics.sigma, descriptor.words
    at = np.arange(descriptor.dimension, words)
    total = summed(descriptor, [np.zeros(sw.DIMENSION)] * 4, [8] * 4).astype(np.int64)
    total[at] = end * STEPS
    source, reached = NoiseSource.fresh("test"), 0
    for _ in range(1500):
        noisy = total.copy()
        noise = dgauss.sample(4 * at.size, sigma, source).reshape(4, at.size).sum(axis=0)
        noisy[at] += noise
        reached = max(reached, int(np.abs(noise).max()))
        applied(plan, (noisy % 2**32).astype(np.uint32), descriptor)
    assert 3 < reached / (2 * sigma) < 7
    outwards = 1 if end else -1
    for deviations, possible in ((11.9, True), (12.1, False)):
        for place in at:
            noisy = total.copy()
            noisy[place] += outwards * int(deviations * 2 * sigma)
            sum_of = (noisy % 2**32).astype(np.uint32)
            if possible:
                applied(plan, sum_of, descriptor)
            else:
                with pytest.raises(QuarantinedSumError, match="outside"):
                    applied(plan, sum_of, descriptor)


def test_successes_exceed_episodes_by_no_more_than_both_noises():
    plan = sw.parsed(sw.plan_toml(mode="silo", noise=1.0))
    descriptor = descriptor_of(plan)
    both = math.sqrt(2.0) * descriptor.metrics.sigma * 2.0
    for deviations, possible in ((11.9, True), (12.1, False)):
        apart = int(deviations * both / 2)
        total = claimed(
            descriptor,
            episodes_of_constant=2 * STEPS - apart,
            successes_of_constant=2 * STEPS + apart,
        )
        if possible:
            applied(plan, total, descriptor)
        else:
            with pytest.raises(QuarantinedSumError, match="exceeds its episodes"):
                applied(plan, total, descriptor)


def test_leftover_masks_are_recognised():
    plan = sw.parsed(sw.plan_toml(mode="silo", noise=0.1))
    descriptor = descriptor_of(plan)
    garbage = np.random.default_rng(3).integers(0, 2**32, descriptor.words, dtype=np.uint32)
    with pytest.raises(QuarantinedSumError):
        applied(plan, garbage, descriptor)


def test_a_sum_of_another_length_is_refused():
    plan = sw.parsed(sw.plan_toml())
    descriptor = descriptor_of(plan)
    total = summed(descriptor, deltas(), [1] * 4)
    with pytest.raises(Exception, match=r"\d") as caught:
        applied(plan, total[:-1], descriptor)
    assert type(caught.value).__module__.startswith(("secagg", "dp", "federation"))


# The descriptor ----------------------------------------------------------------------------------


def test_the_descriptor_follows_from_plan_roster_and_who_is_ready():
    plan = sw.parsed(sw.plan_toml(mode="silo", noise=1.0))
    full, fewer = descriptor_of(plan), descriptor_of(plan, ready=NAMES[:3])
    assert (full.cohort, full.threshold, full.colluding) == (NAMES, 3, 1)
    assert (fewer.cohort, fewer.threshold) == (NAMES[:3], 3)
    assert full.deadlines_unix_s == (106, 112, 118, 124, 130)
    # max(t, n_min) − c honest shares hold the whole variance.
    assert full.noise_sigma**2 * 2 >= (1.0 * sw.GRID) ** 2
    assert full.scale == sw.GRID / sw.CLIP
    assert full.metrics.names == ("update_norm_sq", "episodes/constant", "successes/constant")
    assert full.metrics.bounds == (sw.CLIP**2, 64.0, 64.0)
    assert full.privacy_spec_sha256 == plan.spec.sha256()


def test_a_family_that_too_few_declare_has_no_coordinates():
    plan = sw.parsed(sw.plan_toml())
    ready = {NAMES[0]: ("maze",), NAMES[1]: ("maze",), NAMES[2]: (), NAMES[3]: ()}
    descriptor = build_descriptor(
        identity=AggregationId(run_id="run", round=1, step=0, part=0, attempt=1),
        plan=plan,
        plan_sha256=bytes(32),
        roster=signed_roster(make_roster(4)),
        ready=ready,
        adapter=sw.INITIAL,
        adapter_sha256=bytes(32),
        now_unix_s=100,
    )
    assert descriptor.metrics.names == ("update_norm_sq",)


def test_a_malformed_adapter_builds_no_descriptor():
    plan = sw.parsed(sw.plan_toml())
    with pytest.raises(FederationError):
        build_descriptor(
            identity=AggregationId(run_id="run", round=1, step=0, part=0, attempt=1),
            plan=plan,
            plan_sha256=bytes(32),
            roster=signed_roster(make_roster(4)),
            ready=dict.fromkeys(NAMES, ()),
            adapter=b"x" * 100,
            adapter_sha256=bytes(32),
            now_unix_s=100,
        )


# Standard errors ---------------------------------------------------------------------------------


def test_every_figure_has_the_standard_error_that_its_values_show():
    """Many rounds of the same silos with fresh noise, through the real grid, block and decoder."""
    plan = sw.parsed(sw.plan_toml(mode="silo", noise=0.001))
    descriptor, layout = descriptor_of(plan), descriptor_of(plan).metrics
    parts = [deltas(scale=0.25, seed=2)[0] + own for own in deltas(scale=0.15, seed=3)]
    assert max(np.linalg.norm(part) for part in parts) < sw.CLIP
    draw = np.random.default_rng(9)
    sigma, metrics_sigma = descriptor.noise_sigma * 2.0, layout.sigma * 2.0
    clean = summed(descriptor, parts, [8, 16, 24, 32]).astype(np.int64)
    results = []
    for _ in range(300):
        noise = np.rint(draw.normal(size=descriptor.words) * sigma)
        noise[descriptor.dimension :] = np.rint(draw.normal(size=len(layout.names)) * metrics_sigma)
        total = ((clean + noise.astype(np.int64)) % 2**32).astype(np.uint32)
        results.append(applied(plan, total, descriptor))
    for name in ("update_norm", "kappa", "zeta_sq", "silo_norm_sq"):
        values = np.array([getattr(result, name) for result in results])
        errors = np.array([getattr(result, f"{name}_error") for result in results])
        assert np.isfinite(values).all(), name
        assert float(errors.mean()) == pytest.approx(float(values.std()), rel=0.15), name
    ratios = [result.success["constant"] for result in results]
    spread = float(np.std([ratio.mean for ratio in ratios]))
    assert float(np.mean([r.standard_error for r in ratios])) == pytest.approx(spread, rel=0.15)


def test_below_noise_the_error_is_still_told():
    plan = sw.parsed(sw.plan_toml(mode="silo", noise=0.5))
    descriptor = descriptor_of(plan)
    sigma = descriptor.noise_sigma * 2.0
    silent = applied(
        plan, summed(descriptor, [np.zeros(sw.DIMENSION)] * 4, [8] * 4, noise=sigma), descriptor
    )
    assert math.isnan(silent.zeta_sq)
    assert silent.zeta_sq_error > 0
    assert silent.silo_norm_sq_error > 0
    assert silent.update_norm_error > 0


# Memory maps -------------------------------------------------------------------------------------


def test_a_read_only_map_gives_the_same_bytes(tmp_path):
    plan = sw.parsed(sw.plan_toml())
    descriptor = descriptor_of(plan)
    total = summed(descriptor, deltas(), [8, 16, 24, 32])
    plain = applied(plan, total, descriptor)
    (tmp_path / "sum").write_bytes(total.tobytes())
    mapped = np.memmap(tmp_path / "sum", dtype="<u4", mode="r")
    result = applied(plan, mapped, descriptor)
    assert b"".join(result.adapter) == b"".join(plain.adapter)
    assert result.sum_bytes == plain.sum_bytes == total.tobytes()
    assert result.sum_bytes.readonly
    # The chain of every federation depends on these bits.
    assert hashlib.sha256(b"".join(plain.adapter)).hexdigest() == PINNED_ADAPTER
