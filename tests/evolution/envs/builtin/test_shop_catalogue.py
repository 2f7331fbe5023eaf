"""The shop's products, its search against BM25 computed another way, and its reward."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from evolution.envs.builtin.shop.goal import CAREFUL_STEPS, Goal, draw_goal, score
from evolution.envs.builtin.shop.products import (
    CATEGORIES,
    DEPARTMENTS,
    Product,
    department,
    draw_product,
    standard_catalogue,
)
from evolution.envs.builtin.shop.ranking import K1, B, Bm25


def bm25(documents, document, query):
    """Robertson and Zaragoza 2009, equation 3.15 with 3.3, straight from the page."""
    average = np.mean([len(d) for d in documents])
    total = 0.0
    for word in set(query):
        tf = document.count(word)
        holding = sum(word in d for d in documents)
        rsj = math.log((len(documents) - holding + 0.5) / (holding + 0.5))
        total += tf / (K1 * ((1 - B) + B * len(document) / average) + tf) * rsj
    return total


def test_bm25_agrees_with_the_formula_on_random_documents():
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(12)]
    documents = [
        [str(w) for w in rng.choice(words, size=int(rng.integers(1, 9)))] for _ in range(60)
    ]
    index = Bm25(documents)
    for _ in range(40):
        query = [str(w) for w in rng.choice(words, size=int(rng.integers(1, 5)))]
        expected = {
            n: bm25(documents, d, query) for n, d in enumerate(documents) if set(d) & set(query)
        }
        found = index.scores(query)
        assert found == pytest.approx(expected, rel=1e-12)
        ranked = [found[n] for n in index.rank(query)]
        assert ranked == sorted(ranked, reverse=True)
        assert len(ranked) == len(expected)


def test_bm25_by_hand():
    """Three documents of length 2, so length plays no part: ln(2.5 / 1.5) / (k1 + 1)."""
    index = Bm25([["a", "b"], ["b", "c"], ["c", "d"]])
    assert index.scores(["a"]) == pytest.approx({0: math.log(2.5 / 1.5) / 2.5}, rel=1e-12)
    assert index.rank(["a", "d"]) == (0, 2)
    assert index.rank(["nothing"]) == index.rank([]) == ()
    assert Bm25([]).rank(["a"]) == ()


def test_shorter_titles_come_first_and_repeated_words_count_once():
    index = Bm25([["warm", "long", "soft", "coat"], ["warm", "coat"], *[["pan"]] * 6])
    assert index.rank(["warm", "coat"]) == (1, 0)
    assert index.scores(["warm", "warm", "coat"]) == index.scores(["coat", "warm"])


def test_catalogue_is_a_thousand_products_from_one_seed():
    products = standard_catalogue().products
    assert len(products) == 1_000
    assert set(Counter(p.category for p in products).values()) == {125}
    rng = np.random.default_rng(0x53484F50)
    again = [draw_product(CATEGORIES[n % len(CATEGORIES)], rng=rng) for n in range(1_000)]
    assert list(products) == again
    for p in products:
        assert set(p.attributes) <= set(DEPARTMENTS[department(p.category)][1])
        assert len(set(p.attributes)) in (2, 3)
        assert 1 <= p.price <= 9
        assert 3 <= len(set(p.colours)) <= 5
        assert 2 <= len(set(p.sizes)) <= 3
    assert {p.price for p in products} == set(range(1, 10))


def test_four_shards_are_four_departments_without_a_word_in_common():
    shards = [{department(category) for category in CATEGORIES[n::4]} for n in range(4)]
    assert [len(shard) for shard in shards] == [1] * 4
    words = [{*categories, *attributes} for categories, attributes in DEPARTMENTS.values()]
    assert all(not left & right for left, right in combinations(words, 2))


GOAL = Goal(category="coat", attributes=("warm", "soft"), colour="red", size="large", budget=5)


@pytest.mark.parametrize(
    ("category", "attributes", "price", "picked", "reward"),
    [
        ("coat", ("soft", "warm"), 5, ("red", "large"), 1.0),
        ("coat", ("soft", "slim", "warm"), 1, ("large", "red"), 1.0),
        ("coat", ("soft", "warm"), 6, ("red", "large"), 4 / 5),
        ("coat", ("soft", "slim"), 5, ("red", "large"), 4 / 5),
        ("coat", ("soft", "warm"), 5, ("red",), 4 / 5),
        ("coat", ("soft", "warm"), 5, ("red", "small"), 4 / 5),
        ("coat", ("lined", "slim"), 9, (), 0.0),
        ("boots", ("soft", "warm"), 5, ("red", "large"), 1 / 2),
        ("boots", ("soft", "slim"), 9, ("red",), 1 / 2 * 2 / 5),
        ("pan", ("deep", "heavy"), 1, ("red", "large"), 0.0),
    ],
)
def test_reward_table(category, attributes, price, picked, reward):
    bought = Product(
        category=category,
        attributes=attributes,
        colours=("red", "blue"),
        sizes=("small", "large"),
        price=price,
    )
    assert score(GOAL, bought, picked) == pytest.approx(reward)
    assert (score(GOAL, bought, picked) == 1.0) == (reward == 1.0)


def test_goals_can_be_met_and_are_not_met_by_much_else():
    catalogue = standard_catalogue()
    meeting = []
    for n in range(200):
        goal = draw_goal(catalogue, CATEGORIES[n % 8], rng=np.random.default_rng(n))
        found = [catalogue.products[i] for i in catalogue.search(goal.words)]
        places = [place for place, p in enumerate(found) if goal.fits(p)]
        # One search, four more pages at most, open, two options, buy.
        assert places[0] < 4 * (CAREFUL_STEPS - 4)
        meeting.append(len(places))
    assert 1 <= np.mean(meeting) < 12
    assert min(meeting) == 1
