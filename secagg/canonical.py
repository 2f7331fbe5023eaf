"""The one encoding that is hashed and signed.

``encode(domain, *fields)`` is injective: two different (domain, fields) never share an encoding.
Every value is ``tag (1 byte) ‖ length (8 bytes, big endian) ‖ payload``; a tuple's payload is its
items' encodings in order. The domain comes first, so that a signature made for one purpose can
never be read as another. Protobuf is not used for this: its serialisation is not canonical.

Covered: int (any size, two's complement), bool, float (IEEE 754 binary64, big endian), str (UTF-8),
bytes, tuple, nested without limit of kind. Not covered, and refused: NaN and minus zero (equal
numbers must have equal encodings), None, lists, dicts, numpy scalars, subclasses of the above.
"""

import hashlib
import math
import struct
from typing import Final

from secagg.errors import ParameterError

_pack: Final = struct.Struct(">cQ").pack
_DOUBLE: Final = struct.Struct(">d")
_MAX_DEPTH: Final = 16

# A field is one of these, where a tuple holds fields again.
Field = int | bool | float | str | bytes | tuple["Field", ...]


def encode(domain: str, *fields: Field) -> bytes:
    """Encode the fields under a domain such as ``chorale/v1/key-bundle``, in the order it fixes.

    Raises:
        ParameterError: A value has no canonical encoding.
    """
    if type(domain) is not str or not domain:
        raise ParameterError("a canonical encoding needs a domain")
    return _encode_value((domain, *fields), 0)


def digest(domain: str, *fields: Field) -> bytes:
    """Return the SHA-256 of the encoding."""
    return hashlib.sha256(encode(domain, *fields)).digest()


def _encode_value(value: object, depth: int) -> bytes:
    if depth > _MAX_DEPTH:
        raise ParameterError("tuples are nested too deeply")
    if type(value) is tuple:
        payload = b"".join(_tuple_parts(value, depth))
        return _pack(b"t", len(payload)) + payload
    tag, payload = _payload(value)
    return _pack(tag, len(payload)) + payload


def _tuple_parts(items: tuple[object, ...], depth: int) -> list[bytes]:
    """Headers and payloads in turn; byte strings, most of what is encoded, without a call each."""
    parts: list[bytes] = []
    for item in items:
        if type(item) is bytes:
            parts += (_pack(b"y", len(item)), item)
        else:
            parts.append(_encode_value(item, depth + 1))
    return parts


def _payload(value: object) -> tuple[bytes, bytes]:
    # Exact types: a subclass could carry meaning that its base's encoding loses.
    kind = type(value)
    if isinstance(value, str) and kind is str:
        try:
            return b"s", value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ParameterError("a string with lone surrogates cannot be encoded") from error
    if isinstance(value, bytes) and kind is bytes:
        return b"y", value
    if kind is bool:
        return b"b", b"\x01" if value else b"\x00"
    if isinstance(value, int) and kind is int:
        return b"i", value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True)
    if isinstance(value, float) and kind is float:
        if math.isnan(value) or (value == 0.0 and math.copysign(1.0, value) < 0):
            raise ParameterError("NaN and minus zero have no canonical encoding")
        return b"f", _DOUBLE.pack(value)
    raise ParameterError(f"{kind.__name__} has no canonical encoding")
