"""BM25: which documents answer a query, best first.

The formula is Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond"
(Foundations and Trends in Information Retrieval 3(4), 2009), equations 3.15 and 3.3::

    score(d, q) = Σ_{w ∈ q} tf(w, d) / (k1 · ((1 − b) + b · |d| / avdl) + tf(w, d)) · rsj(w)
    rsj(w)      = ln((N − n(w) + ½) / (n(w) + ½))      without relevance information

Invariants:

1. A document that holds no word of the query is not listed.
2. The order of the words in a query, and repeating them, changes nothing, bit for bit.
3. Equal scores are listed in the order of the documents.

Covered: small collections, all in memory. Not covered: phrases, stemming, several fields (BM25F).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["K1", "B", "Bm25"]

# Section 3.3.4 of the paper calls 1.2 < k1 < 2 and 0.5 < b < 0.8 reasonably good in many cases.
K1 = 1.5
B = 0.75


class Bm25:
    """An index over documents, each a sequence of words."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        lengths = [len(document) for document in documents]
        average = sum(lengths) / max(1, len(lengths))
        # Word → document → what the word adds to the document's score.
        self._gains: dict[str, dict[int, float]] = {}
        for number, document in enumerate(documents):
            for word, tf in Counter(document).items():
                soft = K1 * ((1 - B) + B * lengths[number] / average)
                self._gains.setdefault(word, {})[number] = tf / (soft + tf)
        for gains in self._gains.values():
            rsj = math.log((len(documents) - len(gains) + 0.5) / (len(gains) + 0.5))
            for number in gains:
                gains[number] *= rsj

    def scores(self, query: Iterable[str]) -> dict[int, float]:
        """Scores of the documents that hold a word of the query, by the document's number.

        Words in no document count for nothing.
        """
        found: dict[int, float] = {}
        # Floating-point sums depend on the order of their terms, so the order is fixed.
        for word in sorted(set(query)):
            for number, gain in self._gains.get(word, {}).items():
                found[number] = found.get(number, 0.0) + gain
        return found

    def rank(self, query: Iterable[str]) -> tuple[int, ...]:
        """Numbers of the documents that hold a word of the query, the highest score first."""
        found = self.scores(query)
        return tuple(sorted(found, key=lambda number: (-found[number], number)))
