"""BM25 against the published formula, and against figures of two public implementations."""

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
