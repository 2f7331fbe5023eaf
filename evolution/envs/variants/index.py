"""BM25 over chosen fields of documents, with its two constants free.

FedAgent's formula (appendix, BM25 Reweighting), which is Lucene's with the numerator k1 + 1 ::

    score(d, q) = Σ_{w ∈ q} idf(w) · tf(w, d)(k1 + 1) / (tf(w, d) + k1(1 − b + b·|d|/avgdl))
    idf(w)      = ln(1 + (N − n(w) + ½)/(n(w) + ½))

The factor k1 + 1 changes scores and no order. The inverse document frequency is that of Lucene's
BM25Similarity, which WebShop's search engine (Pyserini) uses: it is never negative, so a document
that holds a word of the query is above one that holds none.

Invariants:

1. A document without a word of the query is not listed.
2. The order of the words in a query, and repeating them, changes nothing, bit for bit.
3. Equal scores are listed in the order of the documents.

Covered: collections in memory; several fields read as one text. Not covered: stemming, weights of
fields (BM25F); Lucene's rounding of lengths to one byte.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["K1", "B", "Index"]

K1 = 1.2
B = 0.75


class Index:
    """An index over documents, each a sequence of words."""

    def __init__(self, documents: Sequence[Sequence[str]], *, k1: float = K1, b: float = B) -> None:
        count = len(documents)
        average = sum(map(len, documents)) / max(1, count) or 1.0
        found: dict[str, tuple[list[int], list[float]]] = {}
        for number, document in enumerate(documents):
            soft = k1 * (1 - b + b * len(document) / average)
            for word, tf in Counter(document).items():
                places, gains = found.setdefault(word, ([], []))
                places.append(number)
                gains.append(tf * (k1 + 1) / (tf + soft))
        self._count = count
        # Word → the documents that hold it, ascending, and what it adds to each score.
        self._postings: dict[str, tuple[NDArray[np.intp], NDArray[np.float64]]] = {}
        for word, (places, gains) in found.items():
            idf = math.log(1 + (count - len(places) + 0.5) / (len(places) + 0.5))
            self._postings[word] = (np.array(places, np.intp), idf * np.array(gains, np.float64))

    def scores(self, query: Iterable[str]) -> NDArray[np.float64]:
        """The score of every document; 0 for one without a word of the query."""
        total = np.zeros(self._count, np.float64)
        # Floating-point sums depend on the order of their terms, so the order is fixed.
        for word in sorted(set(query)):
            if word in self._postings:
                places, gains = self._postings[word]
                total[places] += gains
        return total

    def rank(self, query: Iterable[str], *, most: int) -> tuple[int, ...]:
        """Numbers of the documents that hold a word of the query, the highest score first."""
        words = set(query)
        total = self.scores(words)
        hold = np.zeros(self._count, np.bool_)
        for word in words & self._postings.keys():
            hold[self._postings[word][0]] = True
        there: NDArray[Any] = np.flatnonzero(hold)
        order = np.argsort(-total[there], kind="stable")[:most]
        return tuple(int(number) for number in there[order])
