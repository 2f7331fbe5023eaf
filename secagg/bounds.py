"""Bounds on every field that another party controls.

Messages and documents call these from ``__post_init__``, so that an object which exists is within
bounds whether it came over the wire or was made in this process. Each function returns nothing and
raises MalformedMessageError. Protocol rules (who may send what, and when) are not looked at here.
"""

import itertools
import math
import re
from collections.abc import Iterable
from typing import Final

from secagg import suite
from secagg.errors import MalformedMessageError

DIGEST_BYTES: Final = 32
KEY_BYTES: Final = suite.KEY_BYTES
SIGNATURE_BYTES: Final = 64
MAX_COHORT: Final = 200
MAX_ROSTER: Final = 1000
MAX_METRICS: Final = 1024
# Environment families that one silo may declare.
MAX_FAMILIES: Final = 64
MAX_FAMILY_CHARACTERS: Final = 64
# 512 MiB of ring elements; the specification asks for 1e8.
MAX_DIMENSION: Final = 2**27
UINT32_MAX: Final = 2**32 - 1
UINT64_MAX: Final = 2**64 - 1

_SILO_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_SPIFFE_URI: Final = re.compile(r"spiffe://[a-z0-9._-]{1,128}(?:/[A-Za-z0-9._-]{1,64}){1,4}")


def require_silo_id(value: object, field: str) -> None:
    """Accept ``[a-z0-9][a-z0-9-]{0,62}``."""
    if type(value) is not str or _SILO_ID.fullmatch(value) is None:
        raise MalformedMessageError(f"{field} is not a silo id")


def require_name(value: object, field: str) -> None:
    """Accept a printable name of at most 128 characters."""
    if type(value) is not str or _NAME.fullmatch(value) is None:
        raise MalformedMessageError(f"{field} is not a name of 1 to 128 plain characters")


def require_family(value: object, field: str) -> None:
    """Accept the name of an environment family: a name of at most 64 characters."""
    require_name(value, field)
    if len(str(value)) > MAX_FAMILY_CHARACTERS:
        raise MalformedMessageError(f"{field} has more than {MAX_FAMILY_CHARACTERS} characters")


def require_spiffe_uri(value: object, field: str) -> None:
    """Accept a SPIFFE URI with a trust domain and one to four path segments."""
    if type(value) is not str or _SPIFFE_URI.fullmatch(value) is None:
        raise MalformedMessageError(f"{field} is not a SPIFFE URI")


def require_bytes(value: object, size_bytes: int, field: str) -> None:
    """Accept bytes of exactly the given size."""
    if type(value) is not bytes or len(value) != size_bytes:
        raise MalformedMessageError(f"{field} is not {size_bytes} bytes")


def require_verification_key(value: bytes, field: str) -> None:
    """Accept an Ed25519 key in its one encoding, for which not just anybody can sign."""
    require_bytes(value, KEY_BYTES, field)
    if not suite.is_sound_key(value):
        raise MalformedMessageError(f"{field} is of small order, or not in its one encoding")


def require_integer(value: object, low: int, high: int, field: str) -> None:
    """Accept an int in [low, high]; a bool is not an int here."""
    if type(value) is not int or not low <= value <= high:
        raise MalformedMessageError(f"{field} is not an integer in [{low}, {high}]")


def require_real(value: object, field: str, *, allow_zero: bool = False) -> None:
    """Accept a finite positive float, or +0 where allowed. Minus zero is refused."""
    if type(value) is not float or not math.isfinite(value) or math.copysign(1.0, value) < 0:
        raise MalformedMessageError(f"{field} is not a finite non-negative number")
    if value == 0.0 and not allow_zero:
        raise MalformedMessageError(f"{field} is zero")


def require_sequence(value: object, kind: type, low: int, high: int, field: str) -> None:
    """Accept a tuple of low to high items of one type."""
    if type(value) is not tuple or not low <= len(value) <= high:
        raise MalformedMessageError(f"{field} does not have {low} to {high} items")
    if any(type(item) is not kind for item in value):
        raise MalformedMessageError(f"{field} has an item that is not a {kind.__name__}")


def require_families(value: tuple[str, ...], field: str) -> None:
    """Accept at most 64 names of families, in ascending order without repeats."""
    require_sequence(value, str, 0, MAX_FAMILIES, field)
    for family in value:
        require_family(family, field)
    if not is_strictly_sorted(value):
        raise MalformedMessageError(f"{field} are not in ascending order without repeats")


def is_strictly_sorted(names: Iterable[str]) -> bool:
    """Tell whether the names are in ascending order without repeats."""
    listed = list(names)
    return all(left < right for left, right in itertools.pairwise(listed))
