"""The fixed order in which named tensors become one flat vector, and back.

Invariants:
    1. Tensors are ordered by name (code points), whatever order they arrive in.
    2. Every tensor is float32 of known shape; names and shapes are matched exactly, nothing is
       broadcast, cast, dropped or filled in.
    3. Two layouts have the same digest only if every name, shape and dtype is equal.

Covered: flat index ↔ (name, position), the digest that the descriptor carries, and which LoRA
factor a tensor is.
Not covered: which tensors are uploaded in which round (``federation.aggregate``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from federation.errors import LayoutError
from secagg import canonical

Tensors = Mapping[str, npt.NDArray[np.float32]]
Factor = Literal["A", "B"]
FloatT = TypeVar("FloatT", np.float32, np.float64)

LAYOUT_DOMAIN: Final = "chorale/v1/layout"

MAX_TENSORS: Final = 65_536
MAX_RANK: Final = 4
MAX_DIMENSION: Final = 1 << 30
"""Coordinates of one adapter; ten times the largest size the protocol is built for."""
_NAME: Final = re.compile(r"[A-Za-z0-9_./:-]{1,512}")
_FACTOR: Final = re.compile(r"(?P<prefix>.+)\.lora_(?P<factor>[AB])\.weight")


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One tensor's name and shape."""

    name: str
    """As in the exported adapter."""
    shape: tuple[int, ...]
    """Every side at least one."""
    dtype: Literal["float32"] = "float32"
    """Deltas and adapters are float32 always."""

    def __post_init__(self) -> None:
        """Refuse what no adapter holds."""
        if not _NAME.fullmatch(self.name):
            raise LayoutError(
                f"tensor name {self.name[:80]!r} is not 1 to 512 letters, digits or _./:-"
            )
        if self.dtype != "float32":
            raise LayoutError(f"tensor {self.name!r} is {self.dtype}: adapters are float32")
        if not 1 <= len(self.shape) <= MAX_RANK or min(self.shape) < 1:
            raise LayoutError(f"tensor {self.name!r} has the unusable shape {self.shape}")

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraPair:
    """The two factors of one adapted layer: ΔW = (α/r)·B·A."""

    prefix: str
    """The layer's name."""
    a: TensorSpec
    """A, r × n."""
    b: TensorSpec
    """B, m × r."""


class Layout:
    """An ordered set of tensor specifications."""

    __slots__ = ("_by_name", "dimension", "sha256", "specs")

    specs: tuple[TensorSpec, ...]
    """In the order of the flat vector."""
    dimension: int
    """Length of the flat vector."""
    sha256: bytes
    """Canonical digest of the ordered names, shapes and dtypes."""

    def __init__(self, specs: tuple[TensorSpec, ...]) -> None:
        if not 1 <= len(specs) <= MAX_TENSORS:
            raise LayoutError(f"a layout has 1 to {MAX_TENSORS} tensors, got {len(specs)}")
        self.specs = tuple(sorted(specs, key=lambda spec: spec.name))
        self._by_name = {spec.name: spec for spec in self.specs}
        if len(self._by_name) != len(self.specs):
            raise LayoutError("a tensor name appears twice in the layout")
        self.dimension = sum(spec.size for spec in self.specs)
        if self.dimension > MAX_DIMENSION:
            raise LayoutError(f"{self.dimension} coordinates are more than {MAX_DIMENSION}")
        self.sha256 = canonical.digest(
            LAYOUT_DOMAIN, tuple((spec.name, spec.shape, spec.dtype) for spec in self.specs)
        )

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> Layout:
        """The layout that these tensors have.

        Raises:
            LayoutError: If one is not float32 or has an unusable name or shape.
        """
        for name, tensor in tensors.items():
            _require_float32(name, tensor)
        return cls(
            tuple(TensorSpec(name=name, shape=tensor.shape) for name, tensor in tensors.items())
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.specs == other.specs

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __repr__(self) -> str:
        return f"Layout({len(self.specs)} tensors, dimension {self.dimension})"

    def subset(self, predicate: Callable[[TensorSpec], bool]) -> Layout:
        """The tensors for which ``predicate`` holds, in order; a LayoutError if none is left."""
        return Layout(tuple(spec for spec in self.specs if predicate(spec)))

    def require(self, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Check that ``tensors`` are exactly these, float32, of these shapes.

        Raises:
            LayoutError: Naming the first difference.
        """
        if tensors.keys() != self._by_name.keys():
            missing = sorted(self._by_name.keys() - tensors.keys())
            unknown = sorted(tensors.keys() - self._by_name.keys())
            raise LayoutError(
                f"{len(missing)} tensors are missing and {len(unknown)} are unknown, "
                f"first {(missing + unknown)[0][:80]!r}"
            )
        for spec in self.specs:
            tensor = tensors[spec.name]
            _require_float32(spec.name, tensor)
            if tensor.shape != spec.shape:
                raise LayoutError(
                    f"tensor {spec.name!r} has shape {tensor.shape}, expected {spec.shape}"
                )

    def flatten(self, tensors: Tensors) -> npt.NDArray[np.float32]:
        """Concatenate the tensors in order, each in row-major order; values are not inspected.

        Raises:
            LayoutError: If the tensors are not exactly the layout's.
        """
        self.require(tensors)
        vector = np.empty(self.dimension, dtype=np.float32)
        start = 0
        for spec in self.specs:
            vector[start : start + spec.size] = tensors[spec.name].reshape(-1)
            start += spec.size
        return vector

    def unflatten(self, vector: npt.NDArray[FloatT]) -> dict[str, npt.NDArray[FloatT]]:
        """Cut a vector into named tensors of the same dtype; the tensors are copies.

        Raises:
            LayoutError: If the vector's length or dtype is wrong.
        """
        if vector.shape != (self.dimension,) or vector.dtype not in (np.float32, np.float64):
            raise LayoutError(
                f"expected a float vector of length {self.dimension}, "
                f"got {vector.dtype} {vector.shape}"
            )
        tensors = {}
        start = 0
        for spec in self.specs:
            tensors[spec.name] = vector[start : start + spec.size].reshape(spec.shape).copy()
            start += spec.size
        return tensors

    def pairs(self) -> tuple[LoraPair, ...]:
        """The LoRA pairs, ordered by prefix.

        Raises:
            LayoutError: If a tensor is not a LoRA factor, lacks its partner, or the ranks differ.
        """
        found: dict[str, dict[Factor, TensorSpec]] = {}
        for spec in self.specs:
            prefix, which = _split(spec.name)
            found.setdefault(prefix, {})[which] = spec
        return tuple(_pair(prefix, both) for prefix, both in sorted(found.items()))


def factor(name: str) -> Factor:
    """Which LoRA factor a tensor is, by the name under which peft exports it.

    Raises:
        LayoutError: If the name is not ``….lora_A.weight`` or ``….lora_B.weight``.
    """
    return _split(name)[1]


def _split(name: str) -> tuple[str, Factor]:
    match = _FACTOR.fullmatch(name)
    if match is None:
        raise LayoutError(
            f"tensor {name[:80]!r} is no LoRA factor: names end in .lora_A.weight or .lora_B.weight"
        )
    return match["prefix"], "A" if match["factor"] == "A" else "B"


def _pair(prefix: str, both: Mapping[Factor, TensorSpec]) -> LoraPair:
    if both.keys() != {"A", "B"}:
        raise LayoutError(f"layer {prefix!r} has only its factor {next(iter(both))}")
    a, b = both["A"], both["B"]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        raise LayoutError(f"layer {prefix!r}: A {a.shape} and B {b.shape} do not multiply")
    if a.shape[0] > min(a.shape[1], b.shape[0]):
        raise LayoutError(f"layer {prefix!r}: rank {a.shape[0]} is above the layer's smaller side")
    return LoraPair(prefix=prefix, a=a, b=b)


def _require_float32(name: str, tensor: npt.NDArray[np.generic]) -> None:
    if tensor.dtype != np.float32:
        raise LayoutError(f"tensor {name[:80]!r} is {tensor.dtype}: adapters are float32")
