"""How far two searches, or two catalogues, are apart.

FedAgent's measures: over queries that are replayed in both, the mean Jaccard index of the first ten
results, and how often the first result is another one.

Covered: any two stages over documents with the same keys. Not covered: which queries are replayed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from evolution.envs.variants.stages import Search, Stages

__all__ = ["TOP", "first_differs", "jaccard", "replayed", "top_jaccard"]

TOP: Final = 10
Results = Sequence[tuple[str, ...]]
"""For each query the keys of what was found first."""


def replayed(stages: Stages, queries: Iterable[Sequence[str]]) -> Results:
    """The first ten results of each query; the n-th is the search of a task n."""
    search, documents = Search(stages), stages.content.documents
    found = []
    for number, words in enumerate(queries):
        search.begin(number)
        found.append(tuple(documents[n].key for n in search.find(words)[:TOP]))
    return found


def jaccard(one: Collection[str], other: Collection[str]) -> float:
    """|A ∩ B| / |A ∪ B|; 1 of two empty sets."""
    union = {*one, *other}
    return len(set(one) & set(other)) / len(union) if union else 1.0


def top_jaccard(one: Results, other: Results) -> float:
    """The mean over queries, in which the order within the ten counts for nothing."""
    pairs = list(zip(one, other, strict=True))
    return sum(jaccard(a, b) for a, b in pairs) / len(pairs)


def first_differs(one: Results, other: Results) -> float:
    """The share of queries whose first result is another one, or is missing in one."""
    pairs = list(zip(one, other, strict=True))
    return sum(a[:1] != b[:1] for a, b in pairs) / len(pairs)
