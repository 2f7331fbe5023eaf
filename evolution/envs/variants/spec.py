"""What a configuration says about a silo's variant of its environments.

::

    { kind = "catalog-split", index = 7, env_div = 1.0, keep_ratio = 0.7 }
    { kind = "field-subset", index = 7, pool = 8 }     silo 7's of eight, by the paper's rule
    { kind = "lookalike", choice = 3 }                 the fourth of the pool, whoever has it
    { kind = "none", descriptor = true }               as it is, with a line that says which it is

Invariants:

1. The table is frozen, strict and closed, and numbers are bounded.
2. A key that the kind has no use for is an error.
3. The same table gives the same environment everywhere and in every round.

Covered: one environment's or one silo's variant. Not covered: who has which (the lab's table
``[variants]`` assigns silos; elsewhere the operator does).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evolution.envs.variants.bm25_reweighting import CONSTANTS
from evolution.envs.variants.catalog_split import ENV_DIV, KEEP_RATIO
from evolution.envs.variants.field_subset import SUBSETS
from evolution.envs.variants.lookalike import DIMENSIONS
from evolution.envs.variants.rank_wrapper import ORDERS
from evolution.envs.variants.seeds import assigned

__all__ = ["KINDS", "Kind", "Part", "VariantSpec"]

Kind = Literal[
    "none", "catalog-split", "field-subset", "bm25-reweighting", "lookalike", "rank-wrapper"
]
Part = Annotated[float, Field(ge=0, le=1)]
KINDS: Final[dict[Kind, tuple[int, ...]]] = {
    "none": (),
    "catalog-split": (),
    "field-subset": (4, len(SUBSETS)),
    "bm25-reweighting": (4, len(CONSTANTS)),
    "lookalike": (len(DIMENSIONS),),
    "rank-wrapper": (len(ORDERS),),
}
"""Kind → the sizes that its pool may have."""
_NEEDS_INDEX: Final = ("catalog-split", "rank-wrapper")


class VariantSpec(BaseModel):
    """See the module."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    kind: Kind
    """Which stage differs, and how."""
    index: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """The silo's number i, counted from 1: the place in a pool and all chance follow from it."""
    pool: Annotated[int, Field(ge=1, le=64)] | None = None
    """How many variants the silo's is drawn from; the kind's smallest pool when absent."""
    choice: Annotated[int, Field(ge=0, le=63)] | None = None
    """The place in the pool, counted from 0, instead of the one that the index gives."""
    env_div: Part | None = None
    """Of ``catalog-split``: how far silos' catalogues differ; 1 when absent."""
    keep_ratio: Part | None = None
    """Of ``catalog-split``: the share of distractors that is kept; 0.7 when absent."""
    descriptor: bool = False
    """Whether the environment says in a line before the instruction which it is."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        pools = KINDS[self.kind]
        for name in ("index", "pool", "choice", "env_div", "keep_ratio"):
            if getattr(self, name) is not None and name not in _uses(self.kind):
                raise ValueError(f"{name}: kind {self.kind!r} has no use for it: leave it out")
        if self.pool is not None and self.pool not in pools:
            raise ValueError(
                f"pool: kind {self.kind!r} has {' or '.join(map(str, pools))} variants, "
                f"not {self.pool}"
            )
        if self.choice is not None and self.choice >= self.size:
            raise ValueError(
                f"choice: the last of {self.size} variants is {self.size - 1}, got {self.choice}"
            )
        # A choice alone says everything where nothing is left to chance.
        chosen = self.choice is not None and self.kind not in _NEEDS_INDEX
        if self.index is None and self.kind != "none" and not chosen:
            raise ValueError(f"index: kind {self.kind!r} needs the silo's number: add it")
        return self

    @property
    def size(self) -> int:
        """How many variants the pool has; 0 without a pool."""
        return self.pool or min(KINDS[self.kind], default=0)

    @property
    def place(self) -> int:
        """Which variant of its pool this is, from 0; 0 where there is no pool."""
        if self.choice is not None:
            return self.choice
        if self.index is None or not self.size:
            return 0
        return assigned(self.index, self.size)

    @property
    def split(self) -> tuple[float, float]:
        """``env_div`` and ``keep_ratio`` of a catalog split."""
        return (
            ENV_DIV if self.env_div is None else self.env_div,
            KEEP_RATIO if self.keep_ratio is None else self.keep_ratio,
        )


def _uses(kind: Kind) -> tuple[str, ...]:
    """The keys beside ``descriptor`` that a kind reads."""
    if kind == "none":
        return ()
    if kind == "catalog-split":
        return "index", "env_div", "keep_ratio"
    return "index", "pool", "choice"
