"""Principles through the driver: a round again, users apart, notes that are not a play's own."""

from __future__ import annotations

import dataclasses

import pytest
from structlog.testing import capture_logs

from evolution.errors import MemoryContentError, PartError
from evolution.memory.principles import Principles
from evolution.methods.noted import Noted
from evolution.methods.playing import Player
from evolution.methods.population import unit_of
from evolution.parts.seam import MemoryView
from evolution.principle import Again, Learned, Used
from federation.plan.recipe import PartChoice, PartsSection, recipe_of
from tests.kit.evolution.plays import task, tried
from tests.kit.evolution.record_round import LOCAL, SURE, Coin, work

PLAIN = {"episodes": 24, "tries_per_task": 4, "window": 2, "max_new_tokens": 3}
RECIPE = recipe_of(
    "fed-se", PartsSection(play=PartChoice(name="principles", alike=0.5, tokens=8, questions=6))
)
USERS = dataclasses.replace(LOCAL, mode=SURE.mode, unit="user", record=SURE.record)
TASKS = SURE


def free(adapter, number=0):
    return dataclasses.replace(work(adapter, round_index=number, **PLAIN)[0], privacy=None)


def kept(silo):
    return silo._principles.listed()


def test_what_a_round_writes_the_next_one_reads_and_counts(make_silo, adapter):
    silo = make_silo(None, recipe=RECIPE)
    silo.evolve(free(adapter, 0))
    first = kept(silo)
    assert 0 < len(first) <= 6
    assert all(one.uses == 0 and one.made_of and one.round == 0 for one in first)
    silo.evolve(free(adapter, 1))
    # Six tasks, two of four tries of each, and each reads the three best of what there was.
    read = min(3, len(first))
    assert sum(one.uses for one in kept(silo)) == 6 * 2 * read
    helped = [
        one
        for group in silo._memory.groups(round_index=1, window=1)
        for one in group.trajectories
        if one.helped_by
    ]
    assert len(helped) == 12
    counted = sum(one.successes for one in kept(silo))
    assert counted == read * sum(one.success for one in helped)


def test_a_round_that_is_begun_again_changes_nothing(make_silo, adapter, monkeypatch):
    straight = make_silo(None, "straight", recipe=RECIPE)
    for number in range(3):
        straight.evolve(free(adapter, number))
    again = make_silo(None, "again", recipe=RECIPE)
    again.evolve(free(adapter, 0))
    # It crashes when everything was played and noted; another process begins the round again.
    with monkeypatch.context() as patched:
        patched.setattr(again._trainer, "train", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            again.evolve(free(adapter, 1))
    noted = kept(again)
    again.close()
    again = make_silo(None, "again", recipe=RECIPE)
    again.evolve(free(adapter, 1))
    assert kept(again) == noted
    again.evolve(free(adapter, 1))
    assert kept(again) == noted
    again.evolve(free(adapter, 2))
    assert kept(again) == kept(straight)
    assert len(kept(again)) > 0


def test_no_text_and_no_subject_is_logged_or_counted(make_silo, adapter, monkeypatch):
    monkeypatch.setattr(Coin, "subjects", True)
    silo = make_silo(None, recipe=RECIPE)
    with capture_logs() as logs:
        said = [silo.evolve(free(adapter, number)).metrics for number in range(2)]
        with monkeypatch.context() as patched:
            refuse = MemoryContentError("a text that is none")
            patched.setattr(Principles, "note", lambda *_, **__: (_ for _ in ()).throw(refuse))
            said.append(silo.evolve(free(adapter, 2)).metrics)
    assert [line["error"] for line in logs if line["event"] == "principles_not_kept"] == [
        "MemoryContentError"
    ]
    told = repr((logs, said))
    assert "user " not in told
    assert len(kept(silo)) > 0
    assert not [one for one in kept(silo) if one.text in told or one.id in told]


def test_there_is_no_file_where_the_play_keeps_nothing(make_silo, adapter, tmp_path):
    silo = make_silo(None, recipe=recipe_of("fed-se", PartsSection()))
    silo.evolve(free(adapter, 0))
    assert silo._principles is None
    assert not list(tmp_path.rglob("principles.sqlite"))


def test_a_users_principles_are_of_his_own_tries_whatever_others_did(
    make_silo, adapter, monkeypatch
):
    monkeypatch.setattr(Coin, "subjects", True)
    reset = Coin.reset
    found = {}
    for other in (False, True):

        def solvable(self, task_id, other=other):
            self.solvable = other or task_id % 3 != 1
            return reset(self, task_id)

        monkeypatch.setattr(Coin, "reset", solvable)
        silo = make_silo(USERS, f"other {other}", recipe=RECIPE)
        for number in range(2):
            silo.evolve(work(adapter, spec=USERS, round_index=number, **PLAIN)[0])
        found[other] = {
            subject: silo._principles.listed(subject=subject)
            for subject in ("user 0", "user 1", "user 2")
        }
        assert silo._principles.apart
    assert found[True]["user 1"] != found[False]["user 1"]
    for subject in ("user 0", "user 2"):
        assert found[True][subject] == found[False][subject]
    assert any(one.uses for own in found[True].values() for one in own)


# Notes that are not a play's own ----------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    with Principles(tmp_path / "principles.sqlite") as opened:
        yield opened


def player(*notes, sent=(), failed=False):
    view = MemoryView(successes=lambda _: (), groups=lambda: ())
    view.noted.extend(notes)
    return Player(
        play=None, tasks=(), places=(), view=view, work=None, sent=list(sent), failed=failed
    )


def written(number, subject):
    source = tried(task(number, subject=subject), f"push {number}")
    return Learned(text=f"of {subject}", sources=(source,)), source


def test_notes_about_other_tries_or_principles_are_not_kept(store):
    hers, her_try = written(1, "ann")
    his, his_try = written(2, "bob")
    noted = Noted(store, None)
    noted.begin(1, epoch=0)
    noted.keep({None: player(hers, his, sent=[her_try, his_try])}, round_index=1)
    ann, bob = store.listed()
    foreign = (
        written(3, "ann")[0],
        Used(principle="gone", success=True),
        Again(principle=ann.id, source=tried(task(1, subject="ann"))),
    )
    for note in foreign:
        with pytest.raises(PartError, match="was not shown"):
            noted.keep({None: player(note, sent=[her_try])}, round_index=1)
    # Where units are apart it costs that unit its notes.
    apart = Noted(store, USERS)
    apart.begin(2, epoch=0)
    of = {subject: unit_of(task(1, subject=subject), "user") for subject in ("ann", "bob")}
    players = {
        of["ann"]: player(Used(principle=bob.id, success=True)),
        of["bob"]: player(Used(principle=bob.id, success=False)),
    }
    apart.keep(players, round_index=2)
    assert [(one.uses, one.successes) for one in store.listed()] == [(0, 0), (1, 0)]
    assert [one.id for one in apart.of(of["ann"])()] == [ann.id]


def test_a_play_that_failed_noted_nothing(store):
    note, source = written(1, "ann")
    noted = Noted(store, USERS)
    noted.begin(1, epoch=0)
    unit = unit_of(source.task, "user")
    noted.keep({unit: player(note, sent=[source], failed=True)}, round_index=1)
    assert len(store) == 0
    noted.keep({unit: player(note, sent=[source])}, round_index=1)
    assert len(store) == 1


def test_where_a_task_is_the_unit_nothing_is_shown_and_nothing_kept(store):
    note, source = written(1, "ann")
    Noted(store, None).keep({None: player(note, sent=[source])}, round_index=1)
    apart = Noted(store, TASKS)
    unit = unit_of(source.task, "task")
    assert list(apart.of(unit)()) == []
    other, other_try = written(2, "ann")
    apart.keep({unit: player(other, sent=[other_try])}, round_index=1)
    assert len(store) == 1


def test_a_later_epoch_of_a_round_undoes_nothing(store):
    note, source = written(1, "ann")
    noted = Noted(store, None)
    noted.begin(1, epoch=0)
    noted.keep({None: player(note, sent=[source])}, round_index=1)
    noted.begin(1, epoch=1)
    assert len(store) == 1
    noted.begin(1, epoch=0)
    assert len(store) == 0
