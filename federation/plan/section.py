"""A table of a document: frozen, strict, closed.

Covered: what every table of a plan has in common. Not covered: which tables there are
(``federation.plan.tables``, ``federation.plan.methods``).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Section", "Slug"]

Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class Section(BaseModel):
    """One table: frozen, strict, closed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
