"""Whom the coordinator leaves out when silos reject each other's secrets."""

import itertools

from secagg.server import pairs as pairs_module
from secagg.server.pairs import left_out


def pairs(*written):
    """From "a<b": b rejects what a dealt."""
    return tuple(tuple(one.split("<")) for one in written)


def test_nobody_goes_without_an_accusation():
    assert left_out((), 0) == ()


def test_the_accused_goes_where_either_would_do():
    assert left_out(pairs("a<b"), 1) == ("a",)
    assert left_out(pairs("a<d", "b<e"), 2) == ("a", "b")


def test_as_few_go_as_will_do():
    assert left_out(pairs("a<d", "b<d"), 2) == ("d",)
    assert left_out(pairs("a<b", "a<c", "b<c"), 3) == ("a", "b")


def test_the_accuser_goes_where_the_accused_are_too_many():
    assert left_out(pairs("a<d", "b<d"), 1) == ("d",)
    assert left_out(pairs("a<d", "b<d", "c<e"), 2) == ("c", "d")


def test_there_is_no_way_with_too_few():
    assert left_out(pairs("a<b"), 0) is None
    assert left_out(pairs("a<d", "b<e"), 1) is None
    assert left_out(pairs("a<b", "a<c", "b<c"), 1) is None


def test_whoever_colludes_all_pairs_are_resolved_within_c():
    """Every set of accusations in which one of two silos is always in it."""
    silos = "abcdef"
    for liars in itertools.combinations(silos, 2):
        possible = [
            pair for pair in itertools.combinations(silos, 2) if not set(liars).isdisjoint(pair)
        ]
        for size in range(4):
            for chosen in itertools.combinations(possible, size):
                gone = left_out(chosen, 2)
                assert gone is not None
                assert len(gone) <= 2
                assert all(not set(gone).isdisjoint(pair) for pair in chosen)


def test_a_search_that_is_made_too_long_ends(monkeypatch):
    """Triangles, of each of which two must go, and one silo too few to leave out."""
    triangles = [
        pair for k in range(5) for pair in itertools.combinations((f"a{k}", f"b{k}", f"c{k}"), 2)
    ]
    assert left_out(triangles, 9) is None
    assert len(left_out(triangles, 10)) == 10
    monkeypatch.setattr(pairs_module, "_MOST_STEPS", 10)
    assert left_out(triangles, 10) is None
