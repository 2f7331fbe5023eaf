"""The adapter to TextWorld over a small package of its form."""

from __future__ import annotations

import importlib
import os
import sys

import pytest

from evolution.envs.catalogue import Catalogue
from evolution.envs.environment import SaysAdmissible
from evolution.envs.foreign import textworld as adapter
from evolution.envs.foreign.child import children_of
from evolution.errors import EnvironmentSetupError, ForeignReplyError, ForeignTimeoutError
from silo_agent.config import foreign_specs
from tests.kit.evolution.foreign_packages import write_textworld

NAME = "textworld:small"
TRAIN = 1_008_000


@pytest.fixture(scope="module", autouse=True)
def _package(tmp_path_factory):
    directory = tmp_path_factory.mktemp("packages")
    write_textworld(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        children_of(adapter.MAKER).close()
        yield
        children_of(adapter.MAKER).close()
    for name in ("textworld", "textworld.generator"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@pytest.fixture
def games(tmp_path):
    return tmp_path / "games"


def make(games, **keys: object):
    return Catalogue(foreign=foreign_specs({NAME: {"games": str(games), **keys}})).make(NAME)


def played() -> list[str]:
    return importlib.import_module("textworld").played


def test_a_game_is_played_to_its_end(games):
    environment = make(games)
    assert environment.reset(TRAIN)[0] == "Take the lamp.\n\n-= Cellar =-\n\nDark."
    seen, reward, terminated, truncated, info = environment.step("examine coin")
    assert (seen, reward, terminated, truncated) == ("No.", 0.0, False, False)
    seen, reward, terminated, truncated, info = environment.step("  Take   LAMP ")
    assert (seen, reward, terminated) == ("Taken 1008000.", 1.0, True)
    assert environment.success(info)
    environment.close()
    assert played()[-1] == "(closed)"


def test_a_game_that_is_not_won_in_time_is_not_solved(games):
    environment = make(games, max_steps=2)
    environment.reset(TRAIN)
    environment.step("drop coin")
    *_, terminated, truncated, info = environment.step("drop coin")
    assert (terminated, truncated) == (False, True)
    assert not environment.success(info)


def test_possible_commands_are_told_and_shown_where_the_operator_wants_them(games):
    environment = make(games, admissible=True)
    seen = environment.reset(TRAIN)[0]
    assert seen.endswith("Dark.\n\nCommands: drop coin; take lamp.")
    assert isinstance(environment, SaysAdmissible)
    assert list(environment.admissible()) == ["drop coin", "take lamp"]
    assert "Commands:" not in make(games).reset(TRAIN)[0]


@pytest.mark.parametrize(
    "command",
    [
        "save",
        "script",
        "quit",
        "take lamp then save",
        "take lamp. save",
        "take lamp, save",
        "look and script",
        "tw-print player id",
        "take lamp\nsave",
        "",
        "take " + "x" * 100,
        "take lämp",
        "undo",
        "g",
    ],
)
def test_what_is_no_command_of_the_game_never_reaches_the_interpreter(games, command):
    environment = make(games)
    environment.reset(TRAIN)
    before = list(played())
    step = environment.step(command)
    assert played() == before
    assert step[4]["valid"] is False
    assert "save" not in step[0]


def test_the_interpreters_own_short_words_are_commands(games):
    environment = make(games)
    environment.reset(TRAIN)
    for command in ("n", "x lamp", "i", "take type g key", "look"):
        assert environment.step(command)[4]["valid"] is True
        assert played()[-1] == command


def test_games_are_made_once_and_kept_by_seed_and_options(games):
    made = []
    for _ in range(2):
        make(games).reset(TRAIN)
        assert {path.suffix for path in games.iterdir()} == {".z8", ".json"}
        made.append([path.stat().st_ino for path in games.glob("*.json")])
    assert made[0] == made[1]
    assert len(made[0]) == 1
    make(games, rooms=3).reset(TRAIN)
    make(games).reset(TRAIN + 1)
    assert len(list(games.glob("*.z8"))) == 3


def test_the_directory_is_bounded_and_what_was_played_last_stays(games):
    environment = make(games, max_games=64)
    environment.reset(TRAIN)
    for story in games.glob("*.z8"):
        for index in range(63):
            name = story.with_name(f"other-{index:02}")
            for ending in (".z8", ".json"):
                name.with_suffix(ending).write_text("{}")
            os.utime(name.with_suffix(".z8"), (index, index))
    environment.reset(TRAIN + 1)
    left = {path.name for path in games.iterdir()}
    assert len([name for name in left if name.endswith(".z8")]) == 64
    assert len(left) == 128
    assert "other-00.z8" not in left
    assert "other-01.z8" in left


def test_without_a_directory_games_last_as_long_as_the_process():
    environment = Catalogue(foreign=foreign_specs({NAME: {}})).make(NAME)
    assert environment.reset(TRAIN)[0].startswith("Take the lamp.")


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_directory_that_others_may_write_to_is_refused(games, mode):
    games.mkdir()
    games.chmod(mode)
    with pytest.raises(EnvironmentSetupError, match="others may write there"):
        make(games).reset(TRAIN)


def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentSetupError, match="cannot be made"):
        make(tmp_path / "file" / "games").reset(TRAIN)


def test_a_game_that_cannot_be_made_costs_its_episode(games):
    with pytest.raises(ForeignReplyError):
        make(games, rooms=13).reset(TRAIN)
    with pytest.raises(ForeignTimeoutError):
        make(games, rooms=14, timeout_s=0.5).reset(TRAIN)
    assert not list(games.iterdir())
    assert make(games).reset(TRAIN)[0].startswith("Take the lamp.")


def test_what_the_package_raises_ends_the_episode(games):
    environment = make(games)
    environment.reset(TRAIN)
    with pytest.raises(ForeignReplyError, match="ValueError"):
        environment.step("drop floor")
    assert played()[-1] == "(closed)"


def test_without_the_package_the_error_says_what_to_install(games, monkeypatch):
    monkeypatch.setattr("evolution.envs.foreign.textworld.find_spec", lambda name: None)
    with pytest.raises(EnvironmentSetupError, match=r"pip install 'chorale\[textworld\]'"):
        make(games).reset(TRAIN)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"rooms": 0}, "rooms"),
        ({"rooms": 21}, "rooms"),
        ({"objects": 51}, "objects"),
        ({"quest_length": 11}, "quest_length"),
        ({"max_games": 63}, "max_games"),
        ({"games": "here"}, "absolute"),
        ({"actions": ["a"]}, "answers are text"),
        ({"success": {"info": "lost"}}, "use a reward or won"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(keys, problem):
    with pytest.raises(ValueError, match=problem):
        foreign_specs({NAME: keys})
