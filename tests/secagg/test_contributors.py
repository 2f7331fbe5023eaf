"""Who counts as a contributor, at the borders."""

import pytest

from secagg.errors import Check, VerificationError
from secagg.parameters import Parameters
from secagg.verification import check_contributors
from tests.kit.secagg.secagg_samples import HYBRID_FIELDS, make_descriptor, make_roster, silo_names

NAMES = silo_names(6)
DESCRIPTOR = make_descriptor(make_roster(6), **HYBRID_FIELDS)


def counted(contributors, parameters, *, after_upload, silo_ids=NAMES):
    declared = {name: ("chess", "maze") if name in contributors else ("chess",) for name in NAMES}
    check_contributors(DESCRIPTOR, declared, silo_ids, parameters, after_upload=after_upload)


def refused(*arguments, **options):
    with pytest.raises(VerificationError) as caught:
        counted(*arguments, **options)
    assert caught.value.check is Check.CONTRIBUTORS


@pytest.mark.parametrize("after_upload", [False, True])
def test_as_many_as_must_survive_declare_a_family_of_the_plan(after_upload):
    parameters = Parameters(n=6, c=1, n_min=3)
    counted(NAMES[:4], parameters, after_upload=after_upload)
    refused(NAMES[:3], parameters, after_upload=after_upload)
    refused((), parameters, after_upload=after_upload)
    # Who declared and is not there does not count.
    refused(NAMES[:4], parameters, after_upload=after_upload, silo_ids=NAMES[1:])


def test_n_min_above_t_counts_too():
    refused(NAMES[:4], Parameters(n=6, c=1, n_min=5), after_upload=False)
    counted(NAMES[:5], Parameters(n=6, c=1, n_min=5), after_upload=False)


def test_two_remain_beyond_those_that_may_collude(monkeypatch):
    # t is max(.., c + 2), so this rule never fires first; it holds should that formula be lost.
    monkeypatch.setattr(Parameters, "least_survivors", 3)
    parameters = Parameters(n=6, c=2, n_min=3)
    counted(NAMES[:3], parameters, after_upload=False)
    refused(NAMES[:3], parameters, after_upload=True)
    counted(NAMES[:4], parameters, after_upload=True)
