import math

import numpy as np
import pytest

from lab.experiment.errors import SumError
from lab.experiment.masked import MaskedSum
from lab.experiment.seeded import SeededWords
from lab.experiment.sums import PlainSum
from lab.experiment.tables import NoiseTable

DIMENSION = 300


def vectors(count, scale=0.01, dimension=DIMENSION):
    rng = np.random.default_rng(1)
    return [rng.normal(size=dimension) * scale for _ in range(count)]


@pytest.mark.parametrize("z", [0.0, 0.5])
@pytest.mark.parametrize("silos", [3, 5])
def test_masked_and_plain_sums_are_the_same_bits(z, silos):
    noise = NoiseTable(z=z)
    plain, masked = (kind(noise, silos=silos, key=(7, 0)) for kind in (PlainSum, MaskedSum))
    for scale in (0.01, 3.0):
        given = vectors(silos, scale)
        one, other = (mean(given, clip_l2=2.0, what="delta") for mean in (plain, masked))
        assert one.tobytes() == other.tobytes()
        assert one.any()


def test_the_mean_is_that_of_the_clipped_vectors():
    given = [*vectors(2), 100.0 * vectors(3)[2]]
    clipped = [x * min(1.0, 2.0 / np.linalg.norm(x)) for x in given]
    mean = PlainSum(NoiseTable(), silos=3, key=())(given, clip_l2=2.0, what="delta")
    # Clip and rounding move each vector by less than √d grid steps.
    assert np.linalg.norm(mean - np.mean(clipped, axis=0)) < 2 * math.sqrt(DIMENSION) * 2.0 / 2**20


def test_a_masked_upload_does_not_look_like_the_vector():
    seen = []

    class Watched(MaskedSum):
        def _total(self, shares, **rest):
            before = [share.copy() for share in shares]
            total = super()._total(shares, **rest)
            seen.extend(zip(before, shares, strict=True))
            return total

    Watched(NoiseTable(), silos=3, key=())(vectors(3), clip_l2=2.0, what="delta")
    assert len(seen) == 3
    for before, uploaded in seen:
        assert np.mean(before == uploaded) < 0.01


def test_noise_has_its_standard_deviation_and_depends_on_sum_silo_and_key():
    noise, silos, dimension = NoiseTable(z=1.0), 4, 20_000
    nothing = [np.zeros(dimension)] * silos

    def mean(key):
        summed = PlainSum(noise, silos=silos, key=key)
        return [summed(nothing, clip_l2=2.0, what="delta") for _ in range(2)]

    first, second = mean((1,))
    # All n silos add variance (zC)²/(n − 1), and the mean divides by n.
    expected = 2.0 * math.sqrt(silos / (silos - 1)) / silos
    assert first.std() == pytest.approx(expected, rel=0.03)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    again, other = mean((1,))[0], mean((2,))[0]
    assert again.tobytes() == first.tobytes()
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.05


def test_silos_draw_noise_of_their_own():
    one, other = np.empty(4, np.uint64), np.empty(4, np.uint64)
    SeededWords(1, 1, 0).fill_uint64(one)
    SeededWords(1, 1, 1).fill_uint64(other)
    assert not (one == other).any()
    SeededWords(11, 0).fill_uint64(other)
    assert not (one == other).any()


def test_words_are_not_halves_of_one_another():
    words = SeededWords("w")
    out = np.empty(1000, np.uint32)
    words.fill_uint32(out)
    assert len(set(out.tolist())) > 990
    assert 0.4 < np.mean(out >> 31) < 0.6


@pytest.mark.parametrize("kind", [PlainSum, MaskedSum])
def test_what_cannot_be_summed_is_refused(kind):
    summed = kind(NoiseTable(), silos=3, key=())
    with pytest.raises(SumError, match="2 vectors where 3"):
        summed(vectors(2), clip_l2=1.0, what="delta")
    with pytest.raises(SumError, match="NaN"):
        summed([*vectors(2), np.full(DIMENSION, np.nan)], clip_l2=1.0, what="delta")
    with pytest.raises(SumError, match="float vector of length"):
        summed([*vectors(2), np.zeros(3)], clip_l2=1.0, what="delta")
    with pytest.raises(SumError, match="too coarse"):
        kind(NoiseTable(grid=16), silos=3, key=())(vectors(3), clip_l2=1.0, what="delta")


def test_a_sum_that_could_wrap_is_refused():
    summed = PlainSum(NoiseTable(z=100.0, grid=2**24), silos=3, key=())
    with pytest.raises(SumError, match="may wrap"):
        summed(vectors(3), clip_l2=1.0, what="delta")
