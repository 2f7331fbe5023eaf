"""``[partition]``: a dealing of training tasks to silos, with a heterogeneity that a dial sets.

Which keys a kind reads::

    kind        dial              beside it
    preference  omega             length
    coverage    xi                sizes
    hardness    xi_hard           length, solved_shares, solved
    joint       all three         sizes, solved_shares, solved

``pool`` and ``seed`` are read by all. A setting's ``partition`` changes keys of the table; where it
names another kind, only ``pool``, ``seed`` and, if that kind reads it, ``solved`` are taken over.

Invariants:
    1. A key that the kind does not read is refused, as one that it lacks is: what a run is
       described by is what decides it.
    2. ``solved`` names a file and ``solved_sha256`` is its content; a run has both, and stands for
       the content.

Covered: types, ranges, which keys go together. Not covered: whether the pool has the tasks
(``dealing.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from lab.experiment.checked import validated
from lab.experiment.errors import ExperimentFileError
from lab.experiment.tables import Section, Seed
from lab.partitions.quotas import Bounds

__all__ = ["MAX_POOL", "PartitionTable", "overridden_partition", "pinned"]

MAX_POOL: Final = 1_000_000
MAX_FLAGS_BYTES: Final = 1 << 28
_ROUNDING: Final = 1e-6
_COMMON: Final = ("pool", "seed")
_FLAGS: Final = ("solved", "solved_sha256")
_READS: Final[Mapping[str, frozenset[str]]] = {
    "preference": frozenset({"omega", "length"}),
    "coverage": frozenset({"xi", "sizes"}),
    "hardness": frozenset({"xi_hard", "length", "solved_shares", "solved"}),
    "joint": frozenset({"omega", "xi", "xi_hard", "sizes", "solved_shares", "solved"}),
}
_Dial = Annotated[float, Field(ge=1e-6, le=1e9)]
_Size = Annotated[int, Field(ge=1, le=MAX_POOL)]
_Share = Annotated[float, Field(ge=0, le=1)]


class PartitionTable(Section):
    """See the module."""

    kind: Literal["preference", "coverage", "hardness", "joint"]
    """What silos differ in."""
    omega: Annotated[float, Field(ge=1e-6, le=1 - 1e-6)] | None = None
    """ω: near 0 all silos have the pool's types, near 1 each has one."""
    xi: _Dial | None = None
    """ξ: large, and silos have equally many tasks; small, and they have the least or the most."""
    xi_hard: _Dial | None = None
    """ξ′: the same of how many of its tasks the base solves."""
    length: _Size | None = None
    """Tasks of each silo."""
    sizes: tuple[_Size, _Size, _Size] | None = None
    """Least, average and most tasks of a silo."""
    solved_shares: tuple[_Share, _Share, _Share] | None = None
    """Least, average and largest share of a silo's tasks that the base solves."""
    solved: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """File that says which tasks the base solves, relative to the experiment's."""
    solved_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Its content; if not given, whatever it holds."""
    pool: Annotated[int, Field(ge=1, le=MAX_POOL)]
    """How many training tasks of each environment are dealt, the first ones of the split."""
    seed: Seed = 42
    """Decides every draw; the run's own seed decides none of them."""

    @model_validator(mode="after")
    def _one_kind(self) -> PartitionTable:
        read = _READS[self.kind]
        given = {
            key for key in frozenset().union(*_READS.values()) if getattr(self, key) is not None
        }
        if missing := sorted(read - given):
            raise ValueError(f"kind {self.kind!r} needs {', '.join(missing)}: add it")
        if unread := sorted(given - read):
            raise ValueError(f"kind {self.kind!r} does not read {', '.join(unread)}: remove it")
        if self.solved_sha256 is not None and self.solved is None:
            raise ValueError(f"kind {self.kind!r} does not read solved_sha256: remove it")
        for key in ("sizes", "solved_shares"):
            values = getattr(self, key)
            if values is not None and list(values) != sorted(values):
                raise ValueError(f"{key}: least, average and most, in this order")
        if self.kind == "hardness":
            for count in self.solved_counts:
                if abs(count - round(count)) > _ROUNDING:
                    raise ValueError(
                        f"solved_shares of {self.length} tasks are whole numbers of tasks, and "
                        f"{count:g} is none"
                    )
        return self

    @property
    def size_bounds(self) -> Bounds:
        """``sizes``, or ``length`` for all."""
        return Bounds(*(self.sizes or (self.length or 0,) * 3))

    @property
    def share_bounds(self) -> Bounds:
        """``solved_shares``."""
        return Bounds(*(self.solved_shares or (0.0,) * 3))

    @property
    def solved_counts(self) -> tuple[float, ...]:
        """``solved_shares`` of ``length`` tasks: κ."""
        return tuple(round(share * (self.length or 0), 9) for share in self.solved_shares or ())

    def described(self) -> dict[str, Any]:
        """What decides the dealing, as JSON: where the file of flags lies does not."""
        return self.model_dump(mode="json", exclude_none=True, exclude={"solved"})


def overridden_partition(
    table: PartitionTable | None, changes: Mapping[str, Any], prefix: str
) -> PartitionTable | None:
    """The table with a setting's changes, checked like the table itself.

    Raises:
        ExperimentFileError: With every problem found.
    """
    if not changes:
        return table
    document = {} if table is None else table.model_dump(mode="json", exclude_none=True)
    kind = changes.get("kind", document.get("kind"))
    if kind != document.get("kind"):
        common = (*_COMMON, *_FLAGS) if "solved" in _READS.get(str(kind), ()) else _COMMON
        document = {key: document[key] for key in common if key in document}
    if "solved" in changes:
        document.pop("solved_sha256", None)
    return validated(PartitionTable, {**document, **changes}, prefix=prefix)


def pinned(table: PartitionTable, prefix: str) -> PartitionTable:
    """The table with the digest of its file of flags.

    Raises:
        ExperimentFileError: The file cannot be read, or has another digest than the table says.
    """
    if table.solved is None:
        return table
    path = Path(table.solved)
    try:
        if path.stat().st_size > MAX_FLAGS_BYTES:
            raise ExperimentFileError(
                [f"{prefix}.solved: {path} is larger than {MAX_FLAGS_BYTES} bytes"]
            )
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        make = f"chorale-lab partition flags EXPERIMENT --out {path}"
        problem = f"{prefix}.solved: {error}; this makes it: {make}"
        raise ExperimentFileError([problem]) from error
    if table.solved_sha256 not in (None, found):
        raise ExperimentFileError(
            [f"{prefix}.solved_sha256: {path} has the digest {found}: it is another file"]
        )
    return table.model_copy(update={"solved_sha256": found})
