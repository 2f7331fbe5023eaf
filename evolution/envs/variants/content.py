"""What can be found in a searchable environment: documents, and what its tasks wish for.

A document is what any variant may read or clone: text in named fields, options that it comes in, a
price, and traits that only its environment understands. Fields have WebShop's names where they are
WebShop's (``FIELDS``).

Invariants:

1. A key names one document, and every wish's target is among the documents.
2. A content is compared by identity: two contents that look alike are two contents, so an index
   may be kept for each.

Covered: documents in memory. Not covered: where they come from (the environment).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from evolution.errors import EnvironmentSetupError

__all__ = ["FIELDS", "Content", "Document", "Wish"]

FIELDS: Final = ("name", "title", "description", "features", "bullet_points")
"""WebShop's text fields, in the paper's words name, Title, description, features, BulletPoints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One thing that a search can find."""

    key: str
    """Its name in the content."""
    text: Mapping[str, tuple[str, ...]]
    """Field → words. A field that is missing is empty."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Dimension → what it comes in, for example ``colour`` → red, blue."""
    price: float | None = None
    """None where nothing is sold."""
    traits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What its environment knows beside; a clone has the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a task asks for, as far as variants and measurements need it."""

    target: str
    """Key of the document that fulfils it."""
    words: tuple[str, ...]
    """What somebody searches for who knows the task's text alone."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Dimension → the option wished for."""
    budget: float | None = None
    """The highest price; None is any."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """All documents and wishes of an environment.

    Raises:
        EnvironmentSetupError: Two documents have one key, or a target is not there.
    """

    documents: tuple[Document, ...]
    """In the order that decides between equal scores."""
    wishes: tuple[Wish, ...]
    """Of all tasks."""
    held_out: frozenset[str] = frozenset()
    """Keys of documents that no silo's part of the catalogue has."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Word → another that says about the same."""
    prices: tuple[float, ...] = ()
    """Prices that a document can have here, ascending; empty: any."""

    def __post_init__(self) -> None:
        """Check keys."""
        keys = {document.key for document in self.documents}
        if len(keys) != len(self.documents):
            raise EnvironmentSetupError("two documents have one key")
        if lost := (self.targets | self.held_out) - keys:
            raise EnvironmentSetupError(f"there is no document {min(lost)!r} that is asked for")

    @cached_property
    def targets(self) -> frozenset[str]:
        """Keys of the documents that a task asks for."""
        return frozenset(wish.target for wish in self.wishes)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields that some document has words in, sorted."""
        return tuple(sorted({n for d in self.documents for n, words in d.text.items() if words}))

    def options_of(self, dimension: str) -> tuple[str, ...]:
        """Every option of a dimension that some document comes in, sorted."""
        return tuple(sorted({o for d in self.documents for o in d.options.get(dimension, ())}))
