"""The colours can be read, by day and by night, on everything they stand on."""

import re

import pytest

from server.status_page.page import STYLE

LIGHT, DARK = (
    dict(re.findall(r"--([a-z_-]+): (#[0-9a-f]{6});", block))
    for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
)
ON = {
    "ink": ("paper", "card", "sunk", "good-tint", "watch-tint", "alarm-tint"),
    "soft": ("paper", "card", "good-tint", "watch-tint", "alarm-tint"),
    "link": ("paper", "card", "watch-tint", "alarm-tint"),
    "good": ("card", "good-tint"),
    "watch": ("card", "watch-tint", "alarm-tint"),
    "alarm": ("card", "alarm-tint"),
    "card": ("ink",),
}
"""Colours of text, and what they stand on."""
DRAWN = {
    "good-bar": "card", "watch-bar": "card", "alarm-bar": "card", "curve": "card", "kept": "card",
    "masked_input": "card", "aggregate": "card",
}  # fmt: skip
"""Colours of drawings that a word beside them explains."""


def luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_a_contrast_of_four_and_a_half(colours):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for text, grounds in ON.items():
        for ground in grounds:
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_drawings_are_told_from_their_ground(colours):
    for drawn, ground in DRAWN.items():
        assert contrast(colours[drawn], colours[ground]) >= 2.5, drawn


def test_both_schemes_have_every_colour_and_every_colour_is_known():
    assert LIGHT.keys() == DARK.keys()
    assert set(re.findall(r"var\(--([a-z_-]+)\)", STYLE)) <= LIGHT.keys()


def test_the_style_asks_for_nothing():
    assert "url(" not in STYLE
    assert "@import" not in STYLE
    assert "<" not in STYLE
    assert STYLE.count("{") == STYLE.count("}")
