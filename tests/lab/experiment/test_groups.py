import numpy as np
import pytest

from federation.aggregate.groups import variance_of_rule
from lab.experiment.attack import AttackedMean
from lab.experiment.errors import SumError
from lab.experiment.groups import GroupedSum
from lab.experiment.masked import MaskedSum
from lab.experiment.sums import PlainSum
from lab.experiment.tables import AttackTable, GroupsTable, NoiseTable

DIMENSION = 400
CLIP = 2.0
THREE = GroupsTable(count=3)


def vectors(count=12, length=1.0):
    """Of silos that agree about half of what they say."""
    rng = np.random.default_rng(5)
    common = rng.normal(size=DIMENSION)
    given = [common + rng.normal(size=DIMENSION) for _ in range(count)]
    return [length * vector / np.linalg.norm(vector) for vector in given]


def grouped(z=0.0, *, kind=PlainSum, silos=12, key=(3,)):
    return GroupedSum(kind, NoiseTable(z=z), THREE, silos=silos, key=key)


def attacked(mean, *, clips, direction="reverse", place=4):
    table = AttackTable(silo="any", clips=clips, direction=direction)
    return AttackedMean(mean, table, place=place, key=(3,))


def mean_of(mean, given):
    return mean(given, clip_l2=CLIP, what="delta")


def test_the_median_of_three_groups_that_are_dealt_anew_for_each_sum():
    seen = []

    class Watched(PlainSum):
        def mean_of(self, given, **rest):
            seen.append([int(vector[0]) for vector in given])
            return super().mean_of(given, **rest)

    given = [np.full(DIMENSION, k, dtype=np.float64) for k in range(12)]
    mean = GroupedSum(Watched, NoiseTable(), THREE, silos=12, key=(3,))
    found = mean(given, clip_l2=1e3, what="delta")
    assert sorted(k for group in seen for k in group) == list(range(12))
    assert [len(group) for group in seen] == [4, 4, 4]
    assert found[0] == pytest.approx(np.median([np.mean(group) for group in seen]), abs=0.01)
    first = list(seen)
    mean(given, clip_l2=1e3, what="delta")
    assert seen[3:] != first


def test_groups_of_masked_sums_are_the_same_bits():
    given = vectors(9)
    plain, masked = (grouped(0.1, kind=kind, silos=9) for kind in (PlainSum, MaskedSum))
    assert mean_of(plain, given).tobytes() == mean_of(masked, given).tobytes()


def test_each_group_has_the_noise_of_its_size():
    nothing, dimension = [np.zeros(20_000)] * 12, 20_000
    assert nothing[0].size == dimension
    found = grouped(1.0)(nothing, clip_l2=CLIP, what="delta")
    # Four silos with (zC)²/3 each, over 4; and what the median of three leaves of a variance.
    of_a_group = (CLIP * np.sqrt(4 / 3) / 4) ** 2
    assert found.var() == pytest.approx(of_a_group * variance_of_rule(3, "median", 1), rel=0.03)


def test_one_silo_turns_a_sum_around_and_does_not_turn_the_median_of_groups():
    given = vectors()
    honest = np.mean(given, axis=0)

    def agrees(found):
        return float(found @ honest / (np.linalg.norm(found) * np.linalg.norm(honest)))

    whole = PlainSum(NoiseTable(), silos=12, key=(3,))
    assert agrees(mean_of(attacked(whole, clips=12), given)) < -0.99
    assert agrees(mean_of(attacked(grouped(), clips=4), given)) > 0.3
    assert agrees(mean_of(attacked(grouped(), clips=12), given)) > 0.3


def test_the_attackers_vector_is_so_many_clips_long_and_the_others_are_kept():
    given = vectors()
    whole = PlainSum(NoiseTable(), silos=12, key=(3,))
    others = np.sum([vector for k, vector in enumerate(given) if k != 4], axis=0)
    for direction in ("reverse", "random"):
        found = 12 * mean_of(attacked(whole, clips=5, direction=direction), given) - others
        assert np.linalg.norm(found) == pytest.approx(5 * CLIP, rel=1e-3)
        along = float(found @ others / (np.linalg.norm(found) * np.linalg.norm(others)))
        assert along < -0.999 if direction == "reverse" else abs(along) < 0.2
    again = 12 * mean_of(attacked(whole, clips=5, direction="random"), given) - others
    assert np.allclose(again, found, atol=1e-3)
    assert not mean_of(attacked(whole, clips=5), [np.zeros(DIMENSION)] * 12).any()


def test_what_a_silo_learned_is_sent_or_turned_around_so_many_clips_long():
    given = vectors()
    whole = PlainSum(NoiseTable(), silos=12, key=(3,))
    others = np.sum([vector for k, vector in enumerate(given) if k != 4], axis=0)
    own = given[4] / np.linalg.norm(given[4])
    for direction, along in (("own", 3 * CLIP), ("flip", -3 * CLIP)):
        found = 12 * mean_of(attacked(whole, clips=3, direction=direction), given) - others
        assert np.allclose(found, along * own, atol=1e-2)


def test_what_so_many_copies_could_wrap_is_refused():
    whole = PlainSum(NoiseTable(grid=2**24), silos=12, key=(3,))
    with pytest.raises(SumError, match="may wrap"):
        mean_of(attacked(whole, clips=1000), vectors())
