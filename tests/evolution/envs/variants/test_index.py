"""BM25 against the published formula, and against the figures of a public implementation."""

import math

import numpy as np
import pytest

from evolution.envs.variants.index import Index

TEXTS = [
    text.split()
    for text in (
        "a quick brown fox jumps over the lazy dog",
        "the quick quick fox",
        "lazy dogs sleep all day and all night",
        "brown bread and brown butter",
        "nothing of the kind",
    )
]
QUERIES = (("quick", "fox"), ("brown", "lazy", "all"), ("the",), ("quick", "brown", "night"))
PAIRS = ((1.2, 0.75), (0.3, 0.75), (5.0, 0.75), (1.2, 0.0), (2.0, 0.5))
BM25S = (
    ((1.2, 0.75), QUERIES[0], (0.6607311, 1.0645446, 0.0, 0.0, 0.0)),
    ((1.2, 0.75), QUERIES[1], (0.6607311, 0.0, 1.1423557, 0.5740779, 0.0)),
    ((1.2, 0.75), QUERIES[2], (0.2033949, 0.2836824, 0.0, 0.0, 0.2836824)),
    ((1.2, 0.75), QUERIES[3], (0.6607311, 0.6037715, 0.5545177, 0.5740779, 0.0)),
    ((0.3, 0.75), QUERIES[0], (1.2396018, 1.5016065, 0.0, 0.0, 0.0)),
    ((0.3, 0.75), QUERIES[3], (1.2396018, 0.7869382, 1.0082141, 0.773895, 0.0)),
    ((5.0, 0.75), QUERIES[0], (0.2223413, 0.4888201, 0.0, 0.0, 0.0)),
    ((5.0, 0.75), QUERIES[1], (0.2223413, 0.0, 0.4568257, 0.2746569, 0.0)),
    ((1.2, 0.0), QUERIES[0], (0.7958807, 0.9451083, 0.0, 0.0, 0.0)),
    ((1.2, 0.0), QUERIES[1], (0.7958807, 0.0, 1.2643743, 0.547168, 0.0)),
    ((2.0, 0.5), QUERIES[2], (0.153999, 0.2021237, 0.0, 0.0, 0.2021237)),
    ((2.0, 0.5), QUERIES[3], (0.5002678, 0.4775284, 0.4158883, 0.4567663, 0.0)),
)
"""What the package bm25s 0.3.16 says with ``method="lucene"``: constants, query, scores."""


def published(query, k1, b):
    """The formula, word by word and document by document, with nothing computed ahead."""
    average = sum(len(text) for text in TEXTS) / len(TEXTS)
    scores = []
    for text in TEXTS:
        total = 0.0
        for word in query:
            holders = sum(word in other for other in TEXTS)
            idf = math.log(1 + (len(TEXTS) - holders + 0.5) / (holders + 0.5))
            tf = text.count(word)
            total += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(text) / average))
        scores.append(total)
    return scores


@pytest.mark.parametrize(("k1", "b"), PAIRS)
@pytest.mark.parametrize("query", QUERIES)
def test_scores_are_those_of_the_formula(query, k1, b):
    index = Index(TEXTS, k1=k1, b=b)
    assert index.scores(query) == pytest.approx(published(query, k1, b), rel=1e-12)


@pytest.mark.parametrize(("constants", "query", "expected"), BM25S)
def test_scores_are_those_of_a_known_implementation(constants, query, expected):
    """Lucene's form has no factor k1 + 1, which is the same for every document and word."""
    k1, b = constants
    ours = Index(TEXTS, k1=k1, b=b).scores(query) / (k1 + 1)
    assert ours == pytest.approx(expected, abs=1e-6)


def test_what_holds_no_word_is_not_listed_and_ties_keep_the_documents_order():
    index = Index([["x"], ["y"], ["x"], ["x", "y"]])
    assert index.rank(["x"], most=10) == (0, 2, 3)
    assert index.rank(["x"], most=2) == (0, 2)
    assert index.rank(["z"], most=10) == ()
    assert index.rank([], most=10) == ()
    assert Index([]).rank(["x"], most=10) == ()
    assert Index([[], []]).rank(["x"], most=10) == ()


def test_order_and_repetition_of_a_query_change_no_bit():
    index = Index(TEXTS, k1=0.3, b=0.4)
    once = index.scores(("quick", "brown", "fox", "all"))
    again = index.scores(("fox", "all", "all", "quick", "brown", "fox"))
    assert np.array_equal(once, again)


def test_constants_do_what_they_are_for():
    texts = [["x", "x", "x", "x", "pad"], ["x", "y", "pad", "pad", "pad"], ["x"], ["pad"] * 12]
    long_first = Index(texts, k1=5.0, b=0.0).rank(["x"], most=3)
    assert long_first[0] == 0, "without b and with much k1 repetition wins"
    assert Index(texts, k1=0.1, b=1.0).rank(["x"], most=3)[0] == 2, "with b the short one wins"
