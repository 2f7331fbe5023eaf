"""The published bytes of an adapter: one safetensors file, the same bits everywhere.

The provenance chain is a chain of SHA-256 over these bytes, so there is exactly one encoding of a
set of tensors: fixed metadata, tensors in name order, float32 little-endian, header padded with
spaces to eight bytes. The writer is ours because the chain may not depend on the version of a
library; the reader is the ``safetensors`` library, behind checks of the header.

Invariants:
    1. ``encode_adapter(decode_adapter(x)) == x`` for every x that ``encode_adapter`` returned.
    2. Decoding allocates nothing that the input's own length does not pay for.
    3. What decodes is float32, finite, bounded in count, names and shapes.

Covered: hostile bytes from the network. Not covered: whether the values make a good model.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load

from federation.errors import AdapterError, LayoutError
from federation.layout import MAX_TENSORS, Layout, Tensors, TensorSpec

MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
_METADATA: Final = {"format": "pt"}
"""What peft writes, so that the file opens wherever an exported adapter does."""
_DTYPE: Final = "F32"
_ITEM_BYTES: Final = 4


def encode_adapter(tensors: Tensors) -> bytes:
    """The one published form of ``tensors``.

    Raises:
        AdapterError: If a tensor is not float32 or not finite, or its name or shape is unusable.
    """
    layout = _layout(tensors)
    header: dict[str, object] = {"__metadata__": _METADATA}
    start = 0
    for spec in layout.specs:
        if not np.isfinite(tensors[spec.name]).all():
            raise AdapterError(f"tensor {spec.name!r} holds a NaN or an infinity")
        end = start + spec.size * _ITEM_BYTES
        header[spec.name] = {
            "dtype": _DTYPE,
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)
    data = (
        np.ascontiguousarray(tensors[spec.name], dtype="<f4").tobytes() for spec in layout.specs
    )
    return b"".join((struct.pack("<Q", len(text)), text, *data))


def decode_adapter(adapter_bytes: bytes, *, max_bytes: int) -> dict[str, npt.NDArray[np.float32]]:
    """Read an adapter that may be hostile; files written by other safetensors writers pass too.

    Args:
        adapter_bytes: The whole file.
        max_bytes: Longest file accepted.

    Raises:
        AdapterError: If the bytes are too long, malformed, not float32, or not finite.
    """
    if len(adapter_bytes) > max_bytes:
        raise AdapterError(f"{len(adapter_bytes)} bytes are more than the {max_bytes} accepted")
    layout = _vetted_layout(adapter_bytes)
    try:
        tensors = load(adapter_bytes)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise AdapterError("the bytes are not a safetensors file") from error
    try:
        layout.require(tensors)
    except LayoutError as error:
        raise AdapterError("the tensors are not the ones that the header announced") from error
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise AdapterError(f"tensor {name!r} holds a NaN or an infinity")
    return {spec.name: tensors[spec.name] for spec in layout.specs}


def adapter_sha256(adapter_bytes: bytes) -> bytes:
    """What the chain calls these bytes."""
    return hashlib.sha256(adapter_bytes).digest()


def _layout(tensors: Tensors) -> Layout:
    try:
        return Layout.from_tensors(tensors)
    except LayoutError as error:
        raise AdapterError(str(error)) from error


def _vetted_layout(adapter_bytes: bytes) -> Layout:
    """Read the header alone and refuse everything an adapter does not need."""
    if len(adapter_bytes) < 8:
        raise AdapterError("the bytes end before the header's length")
    (header_bytes,) = struct.unpack_from("<Q", adapter_bytes)
    if header_bytes > min(MAX_HEADER_BYTES, len(adapter_bytes) - 8):
        raise AdapterError(f"a header of {header_bytes} bytes does not fit")
    try:
        header = json.loads(
            adapter_bytes[8 : 8 + header_bytes].decode("utf-8"), object_pairs_hook=_unique
        )
    except (ValueError, RecursionError) as error:
        raise AdapterError("the header is not a JSON object with distinct keys") from error
    if not isinstance(header, dict):
        raise AdapterError("the header is not a JSON object")
    header.pop("__metadata__", None)
    if not 1 <= len(header) <= MAX_TENSORS:
        raise AdapterError(f"an adapter has 1 to {MAX_TENSORS} tensors, got {len(header)}")
    try:
        layout = Layout(tuple(_spec(name, entry) for name, entry in header.items()))
    except LayoutError as error:
        raise AdapterError(str(error)) from error
    data_bytes = len(adapter_bytes) - 8 - header_bytes
    if layout.dimension * _ITEM_BYTES != data_bytes:
        raise AdapterError(
            f"the header announces {layout.dimension} numbers but {data_bytes} bytes follow"
        )
    return layout


def _spec(name: str, entry: object) -> TensorSpec:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise AdapterError(f"the header's entry of {name[:80]!r} is malformed")
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
