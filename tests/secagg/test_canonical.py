"""The canonical encoding is injective and refuses what has no single form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.canonical import digest, encode
from secagg.errors import ParameterError

_SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False).filter(lambda x: x != 0.0 or math.copysign(1.0, x) > 0),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
)
_FIELDS = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)
_MESSAGES = st.tuples(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.lists(_FIELDS, max_size=4).map(tuple),
)


def _typed(value):
    """Python's == calls True, 1 and 1.0 equal; the encoding does not."""
    if isinstance(value, tuple):
        return ("tuple", tuple(_typed(item) for item in value))
    return (type(value).__name__, value)


@given(_MESSAGES, _MESSAGES)
def test_encodings_are_equal_only_for_equal_messages(left, right):
    same = left[0] == right[0] and _typed(left[1]) == _typed(right[1])
    assert (encode(left[0], *left[1]) == encode(right[0], *right[1])) == same


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1,), (True,)),
        ((1,), (1.0,)),
        (("1",), (b"1",)),
        (("ab", "c"), ("a", "bc")),
        ((("a",), "b"), (("a", "b"),)),
        (((),), ()),
        ((0,), (-1,)),
        ((255,), (-1,)),
        (("",), (b"",)),
        (((1, 2), 3), (1, (2, 3))),
    ],
)
def test_look_alikes_differ(left, right):
    assert encode("d", *left) != encode("d", *right)


def test_the_domain_is_not_part_of_the_fields():
    assert encode("a", "b") != encode("b", "a")
    assert encode("ab") != encode("a", "b")


def test_known_encoding():
    length = bytes(7)
    expected = (
        b"t" + length + bytes([9 + 1 + 9 + 1 + 9 + 8 + 9 + 1])
        + b"s" + length + b"\x01d"
        + b"i" + length + b"\x01\xff"
        + b"f" + length + b"\x08" + bytes.fromhex("3ff8000000000000")
        + b"b" + length + b"\x01\x01"
    )  # fmt: skip
    assert encode("d", -1, 1.5, True) == expected
    assert len(digest("d")) == 32


@pytest.mark.parametrize(
    "value", [math.nan, -0.0, None, [1], {"a": 1}, "\ud800", bytearray(b"x"), (1, (None,))]
)
def test_values_without_one_form_are_refused(value):
    with pytest.raises(ParameterError):
        encode("d", value)


def test_an_empty_domain_is_refused():
    with pytest.raises(ParameterError):
        encode("")
