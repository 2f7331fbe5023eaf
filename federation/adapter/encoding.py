"""The published bytes of an adapter: one safetensors file, the same bits everywhere.

The provenance chain is a chain of SHA-256 over these bytes, so there is exactly one encoding of a
set of tensors: fixed metadata, tensors in name order, float32 little-endian, header padded with
spaces to eight bytes. The writer is ours because the chain may not depend on the version of a
library, and the reader is ours because the library copies what it reads.

Invariants:
    1. ``encode_adapter(decode_adapter(x)) == x`` for every x that ``encode_adapter`` returned.
    2. Decoding copies no tensor: what it returns are read-only views of the bytes given, which may
       be a memory map. Beside them it needs the header and one tile.
    3. What decodes is float32, finite, bounded in count, names and shapes, and every byte of the
       file is part of the header or of exactly one tensor.

Covered: hostile bytes from the network. Not covered: whether the values make a good model; a file
that changes under its memory map.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from federation.adapter.layout import MAX_TENSORS, Layout, Tensors, TensorSpec
from federation.errors import AdapterError, LayoutError

Buffer = bytes | bytearray | memoryview

MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
_METADATA: Final = {"format": "pt"}
"""What peft writes, so that the file opens wherever an exported adapter does."""
_DTYPE: Final = "F32"
_ITEM_BYTES: Final = 4
TILE: Final = 1 << 18
"""Coordinates worked on at a time: 1 MiB of float32."""


def encode_adapter(tensors: Tensors) -> bytes:
    """The one published form of ``tensors``, in one piece.

    Raises:
        AdapterError: If a tensor is not float32 or not finite, or its name or shape is unusable.
    """
    return b"".join(adapter_parts(tensors))


def adapter_parts(tensors: Tensors) -> tuple[Buffer, ...]:
    """The one published form of ``tensors``: the header, then one buffer for each tensor.

    Contiguous tensors are not copied, so they must not change while the parts are in use.

    Raises:
        AdapterError: If a tensor is not float32 or not finite, or its name or shape is unusable.
    """
    layout = _layout(tensors)
    for spec in layout.specs:
        _require_finite(spec.name, tensors[spec.name])
    return (
        adapter_header(layout),
        *(
            np.ascontiguousarray(tensors[spec.name], dtype="<f4").data.cast("B")
            for spec in layout.specs
        ),
    )


def adapter_header(layout: Layout) -> bytes:
    """What the published form of tensors of this layout begins with."""
    header: dict[str, object] = {"__metadata__": _METADATA}
    start = 0
    for spec in layout.specs:
        end = start + spec.size * _ITEM_BYTES
        header[spec.name] = {
            "dtype": _DTYPE,
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def decode_adapter(adapter_bytes: Buffer, *, max_bytes: int) -> dict[str, npt.NDArray[np.float32]]:
    """Read an adapter that may be hostile; files written by other safetensors writers pass too.

    ``max_bytes`` is the longest file accepted. The tensors are read-only views of the bytes.

    Raises:
        AdapterError: If the bytes are too long, malformed, not float32, or not finite.
    """
    if len(adapter_bytes) > max_bytes:
        raise AdapterError(f"{len(adapter_bytes)} bytes are more than the {max_bytes} accepted")
    view = memoryview(adapter_bytes).toreadonly().cast("B")
    tensors = {}
    for spec, start_bytes in _vetted_places(view):
        tensor = np.frombuffer(view, dtype="<f4", count=spec.size, offset=start_bytes)
        _require_finite(spec.name, tensor)
        tensors[spec.name] = tensor.reshape(spec.shape)
    return {name: tensors[name] for name in sorted(tensors)}


def adapter_sha256(adapter_bytes: Buffer) -> bytes:
    """What the chain calls these bytes."""
    return hashlib.sha256(adapter_bytes).digest()


def _layout(tensors: Tensors) -> Layout:
    try:
        return Layout.from_tensors(tensors)
    except LayoutError as error:
        raise AdapterError(str(error)) from error


def tiles(vector: npt.NDArray[np.generic]) -> Iterator[slice]:
    """The slices in which a long vector is worked on, so that no second one is ever needed."""
    for start in range(0, vector.size, TILE):
        yield slice(start, min(start + TILE, vector.size))


def _require_finite(name: str, tensor: npt.NDArray[np.float32]) -> None:
    flat = tensor.reshape(-1)
    if not all(np.isfinite(flat[tile]).all() for tile in tiles(flat)):
        raise AdapterError(f"tensor {name!r} holds a NaN or an infinity")


class _Place(NamedTuple):
    """Where a tensor's bytes are."""

    spec: TensorSpec
    start_bytes: int


def _vetted_places(view: memoryview) -> list[_Place]:
    """Refuse everything an adapter does not need; say where each tensor is."""
    header, data_start = _header(view)
    try:
        found = [(_offsets(name, entry), _spec(name, entry)) for name, entry in header.items()]
        Layout(tuple(spec for _, spec in found))
    except LayoutError as error:
        raise AdapterError(str(error)) from error
    places, at = [], 0
    for (start, end), spec in sorted(found, key=lambda item: item[0]):
        if start != at or end - start != spec.size * _ITEM_BYTES:
            raise AdapterError(f"tensor {spec.name[:80]!r} is not where the one before it ends")
        places.append(_Place(spec, data_start + start))
        at = end
    if data_start + at != len(view):
        raise AdapterError(
            f"the header announces {at} bytes of data but {len(view) - data_start} follow"
        )
    return places


def _header(view: memoryview) -> tuple[dict[str, Any], int]:
    """The header's entries of tensors, and where the data begins."""
    if len(view) < 8:
        raise AdapterError("the bytes end before the header's length")
    (header_bytes,) = struct.unpack_from("<Q", view)
    if header_bytes > min(MAX_HEADER_BYTES, len(view) - 8):
        raise AdapterError(f"a header of {header_bytes} bytes does not fit")
    try:
        header = json.loads(
            bytes(view[8 : 8 + header_bytes]).decode("utf-8"), object_pairs_hook=_unique
        )
    except (ValueError, RecursionError) as error:
        raise AdapterError("the header is not a JSON object with distinct keys") from error
    if not isinstance(header, dict):
        raise AdapterError("the header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise AdapterError("the header's metadata is not an object of strings")
    if not 1 <= len(header) <= MAX_TENSORS:
        raise AdapterError(f"an adapter has 1 to {MAX_TENSORS} tensors, got {len(header)}")
    return header, 8 + header_bytes


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise AdapterError(f"the header's entry of {name[:80]!r} is malformed")
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or [type(offset) for offset in offsets] != [int, int]:
        raise AdapterError(f"the offsets of {name[:80]!r} are not two integers")
    return offsets[0], offsets[1]


def _spec(name: str, entry: Any) -> TensorSpec:
    if entry["dtype"] != _DTYPE:
        raise AdapterError(f"tensor {name[:80]!r} is not float32")
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(type(side) is int for side in shape):
        raise AdapterError(f"the shape of {name[:80]!r} is not a list of integers")
    return TensorSpec(name=name, shape=tuple(shape))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key appears twice")
    return entries
