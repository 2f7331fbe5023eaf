"""What a terminal is shown of words from elsewhere."""

import pytest

from federation.text import printable


@pytest.mark.parametrize(
    "character", ["\n", "\r", "\t", "\x00", "\x1b", "\x7f", "\x9b", "\u2028", "\u202e", "\udcff"]
)
def test_what_a_terminal_obeys_is_a_blank(character):
    assert printable(f"a{character}b") == "a b"


def test_letters_and_signs_stay():
    assert printable("ε = 1 · ▁▂█ 東京 ö") == "ε = 1 · ▁▂█ 東京 ö"


def test_what_is_too_long_ends_with_an_ellipsis():
    assert printable("x" * 10, max_chars=10) == "x" * 10
    assert printable("x" * 11, max_chars=10) == "x" * 9 + "…"
