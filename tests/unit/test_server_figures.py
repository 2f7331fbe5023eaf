"""Figures survive the store, including what is not a number."""

import math
from dataclasses import fields

import pytest

from server.figures import RoundFigures
from server.round import Phase


def test_every_field_survives():
    figures = RoundFigures(
        round=3,
        attempt=2,
        phase=Phase.FINISHED,
        phase_since_unix_s=1.5,
        deadline_unix_s=2.5,
        timings_s={"training": 1.25, "unmask": 0.5},
        cohort=("a", "b", "c"),
        survivors=("a", "c"),
        upload_bytes=123,
        success={"craft": (0.25, 0.01), "maze": (0.5, 0.0)},
        update_norm=1.5,
        agreement=0.75,
        heterogeneity=0.125,
        outcome="aggregated",
        adapter_sha256=bytes(range(32)),
    )
    again = RoundFigures.from_json(figures.to_json())
    assert again == figures
    assert type(again.phase) is Phase
    assert len(fields(RoundFigures)) == 15


def test_what_is_below_noise_survives_as_nan():
    figures = RoundFigures(round=1, success={"craft": (math.nan, math.inf)})
    again = RoundFigures.from_json(figures.to_json())
    for name in ("update_norm", "agreement", "heterogeneity"):
        assert math.isnan(getattr(again, name))
    ratio, error = again.success["craft"]
    assert math.isnan(ratio)
    assert error == math.inf
    assert again.to_json() == figures.to_json()


def test_an_unknown_phase_is_refused():
    text = RoundFigures(round=1).to_json().replace('"training"', '"lunch"')
    with pytest.raises(ValueError, match="lunch"):
        RoundFigures.from_json(text)
