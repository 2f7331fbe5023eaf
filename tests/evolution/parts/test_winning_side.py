"""Each side of a game is imitated where it won: by which tokens, by hand."""

from dataclasses import replace

from tests.kit.evolution.trajectories import credited, lost, named, names, shown, won


def said(row):
    """The tokens that the row is about."""
    return [int(token) for token in row.token_ids[row.mask]]


def turns(one):
    return [list(step.action_ids) for step in one.steps]


def test_the_keeper_of_a_success_and_the_visitor_of_a_leak():
    kept = won(1, steps=2)
    leaked = replace(lost(2, word=9, steps=2), violated=True)
    rows = {row.name: row for row in credited("winning-side", [kept, leaked], now=0)}
    assert said(rows[kept.conversation_sha256]) == turns(kept)[1]
    assert said(rows[leaked.conversation_sha256]) == turns(leaked)[0]
    assert all((row.weights == 1.0).all() for row in rows.values())


def test_where_nobody_won_nobody_learns():
    silent = lost(1, word=8, steps=2)
    alone = replace(lost(2, word=9), violated=True)
    assert credited("winning-side", [silent, alone], now=0) == []


def test_a_visit_has_one_turn_and_what_was_shown_is_imitated_whole():
    visit, example = won(1), shown(2, word=7)
    rows = credited("winning-side", [visit, visit], now=0, demonstrations=[example])
    assert named(rows) == names(visit, example)
    assert [said(row) for row in rows if row.name == visit.conversation_sha256] == turns(visit)
