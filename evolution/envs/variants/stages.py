"""The seam of searchable environments: what answers a search, in four stages.

::

    action → content → encoding → matching → rendering → observation
             what      which      how words  what of the
             there is  fields     are scored ranking is shown

FedAgent's split (its figure of the environment pipeline): a silo's environment differs from
another's in exactly one stage, or two, and the agent meets the difference only in what it observes.
A variant is a function from stages to stages, so it works on every environment that is
``Searchable`` and knows nothing of what is searched for.

Invariants:

1. The answers of an episode follow from its task, its searches in their order and the stages; what
   was searched for in an earlier episode changes nothing. Chance in the last stage is drawn from
   the stage's seed, the task and the number of the search within the episode.
2. Which task there is, what it asks for and when it is solved are decided by the environment, from
   the content that it was made with, and are the same under every variant.

Covered: environments with one search box. Not covered: environments without a search, for which the
same four stages are other things (a visibility graph, a precondition checker).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, runtime_checkable

import numpy as np

from evolution.envs.variants.content import Content
from evolution.envs.variants.index import K1, B, Index

__all__ = ["RETURNED", "AsRanked", "Encoding", "Matching", "Rendering", "Search", "Searchable"]
__all__ += ["Stages", "index_of"]

RETURNED: Final = 200
"""Documents that a search gives at most: FedAgent's SEARCH_RETURN_N."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """Stage 2: which fields of a document the search sees."""

    fields: tuple[str, ...]
    """Their words are read one field after another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """Stage 3: BM25's constants."""

    k1: float = K1
    """How soon more of the same word stops counting."""
    b: float = B
    """How much a long document is held against it."""


class Rendering(Protocol):
    """Stage 4: what of a ranking is shown."""

    @property
    def seed(self) -> int:
        """Of what chance there is."""

    def show(
        self, ranked: Sequence[int], *, documents: int, rng: np.random.Generator
    ) -> Sequence[int]:
        """Numbers of documents, of which there are so many, in the order in which they appear."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AsRanked:
    """Everything that was found, the best first."""

    seed: int = 0
    """Unused: nothing is left to chance."""

    def show(
        self, ranked: Sequence[int], *, documents: int, rng: np.random.Generator
    ) -> Sequence[int]:
        """See ``Rendering``."""
        del documents, rng
        return ranked


@dataclass(frozen=True, kw_only=True, eq=False)
class Stages:
    """All four; compared by identity, as contents are."""

    content: Content
    """Stage 1."""
    encoding: Encoding
    """Stage 2."""
    matching: Matching = Matching()
    """Stage 3."""
    rendering: Rendering = AsRanked()
    """Stage 4."""


@runtime_checkable
class Searchable(Protocol):
    """An environment that finds things by these stages."""

    @property
    def stages(self) -> Stages:
        """What answers a search."""

    def use(self, stages: Stages) -> None:
        """Let other stages answer, from the next reset on."""


class Search:
    """The search box of one environment object."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self._index = index_of(stages.content, stages.encoding, stages.matching)
        self._task_id = 0
        self._searches = 0

    def begin(self, task_id: int) -> None:
        """Start an episode; every reset calls it."""
        self._task_id = task_id
        self._searches = 0

    def find(self, words: Iterable[str]) -> tuple[int, ...]:
        """Numbers of documents of the content, as they are shown."""
        rendering = self.stages.rendering
        rng = np.random.default_rng([rendering.seed, self._task_id, self._searches])
        self._searches += 1
        ranked = self._index.rank(words, most=RETURNED)
        if not ranked:
            # Whoever searches for nothing that there is gets nothing, by chance neither.
            return ()
        count = len(self.stages.content.documents)
        return tuple(rendering.show(ranked, documents=count, rng=rng))


@lru_cache(maxsize=256)
def index_of(content: Content, encoding: Encoding, matching: Matching) -> Index:
    """The index of a content; the same object for the same arguments.

    An environment object is made for every episode, and an index is costly.
    """
    texts = [
        [word for name in encoding.fields for word in document.text.get(name, ())]
        for document in content.documents
    ]
    return Index(texts, k1=matching.k1, b=matching.b)
