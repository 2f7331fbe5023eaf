"""What a silo says about itself: hours, charges, its operator's words, and nothing of its data."""

import ast
import datetime as dt
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

from federation.errors import FactsError
from federation.membership.facts import FACTS, Availability, BudgetLeft, FreeGpu, SiloFacts
from silo_agent.books.facts import (
    FACTS_FILE,
    LONGEST_WORD_S,
    SOURCES,
    OperatorsWord,
    Word,
    budget_left_of,
    facts_now,
    published_facts,
)
from silo_agent.books.leave import PRIVATE
from silo_agent.errors import LocalStoreError, PolicyFileError
from silo_agent.policy.document import FactName, Policy
from tests.kit.paths import ROOT

NOON = int(dt.datetime(2027, 1, 15, 12, tzinfo=dt.UTC).timestamp())
HOUR = 3600
EVERYTHING = f"[facts]\npublish = [{', '.join(repr(name) for name in FACTS)}]\n"


def policy(text):
    return Policy.parse(text.encode())


def now(text="", at=NOON, **changes):
    given = {"leaving": False, "budget_left": None, "word": Word(), "now_unix_s": at}
    return facts_now(policy(text), **{**given, **changes})


# The policy ---------------------------------------------------------------------------------------


def test_a_policy_lists_facts_by_name_and_an_empty_one_none():
    assert get_args(FactName) == FACTS
    assert policy("").facts.publish == ()
    assert policy(EVERYTHING).facts.publish == FACTS
    for wrong in ('["reward"]', '["queue", "queue"]', '"queue"', "[1]", '["queue"]\nnotes = "x"'):
        with pytest.raises(PolicyFileError, match="facts"):
            policy(f"[facts]\npublish = {wrong}")


@pytest.mark.parametrize("name", FACTS)
def test_only_what_the_policy_lists_leaves(name):
    said = SiloFacts(
        availability=Availability.UP,
        queue=1,
        free_gpu=FreeGpu.SOME,
        budget_left=BudgetLeft.UNDER_HALF,
        earliest_start_unix_s=NOON,
    )
    listed = policy(f'[facts]\npublish = ["{name}"]')
    assert published_facts(listed, said) == SiloFacts(**{name: getattr(said, name)})
    assert published_facts(policy(""), said) == SiloFacts()
    assert published_facts(policy(EVERYTHING), said) == said


# Each fact ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "at", "up", "start"),
    [
        ("09:00-17:00", 12, True, 9),
        ("09:00-17:00", 9, True, 9),
        ("09:00-17:00", 8, False, 9),
        ("09:00-17:00", 17, False, 33),
        ("20:00-06:00", 23, True, 20),
        ("20:00-06:00", 3, True, -4),
        ("20:00-06:00", 6, False, 20),
        ("20:00-06:00", 12, False, 20),
        ("12:00-12:00", 12, False, None),
    ],
)
def test_hours_say_whether_a_round_may_begin_and_when(hours, at, up, start):
    midnight = NOON - 12 * HOUR
    found = now(f'[schedule]\nhours_utc = "{hours}"', midnight + at * HOUR)
    assert found.availability is (Availability.UP if up else Availability.DOWN)
    assert found.earliest_start_unix_s == (None if start is None else midnight + start * HOUR)


def test_a_window_says_the_same_as_long_as_it_is_open():
    """What changes each minute would be published each minute."""
    text = '[schedule]\nhours_utc = "20:00-06:00"'
    said = {
        now(text, NOON + minute * 60).earliest_start_unix_s for minute in range(8 * 60, 18 * 60)
    }
    assert said == {NOON + 8 * HOUR}


def test_a_silo_that_leaves_is_down_and_starts_nothing():
    assert now() == SiloFacts(availability=Availability.UP)
    assert now(leaving=True) == SiloFacts(availability=Availability.DOWN)
    text = '[schedule]\nhours_utc = "09:00-17:00"'
    assert now(text, leaving=True) == SiloFacts(availability=Availability.DOWN)


@pytest.mark.parametrize(
    ("spent", "caps", "left"),
    [
        ({"silo": 1.0}, {}, None),
        ({"silo": 1.0}, {"silo": 0.0, "task": 0.0}, None),
        ({}, {"silo": 8.0}, BudgetLeft.OVER_THREE_QUARTERS),
        ({"silo": 2.0}, {"silo": 8.0}, BudgetLeft.OVER_THREE_QUARTERS),
        ({"silo": 2.1}, {"silo": 8.0}, BudgetLeft.UNDER_THREE_QUARTERS),
        ({"silo": 4.1}, {"silo": 8.0}, BudgetLeft.UNDER_HALF),
        ({"silo": 6.1}, {"silo": 8.0}, BudgetLeft.UNDER_QUARTER),
        ({"silo": 9.0}, {"silo": 8.0}, BudgetLeft.UNDER_QUARTER),
        # The kind with the least left, and only kinds that have a cap.
        ({"silo": 1.0, "task": 7.0}, {"silo": 8.0, "task": 8.0}, BudgetLeft.UNDER_QUARTER),
        ({"silo": 1.0, "task": 7.0}, {"silo": 8.0, "task": 0.0}, BudgetLeft.OVER_THREE_QUARTERS),
        ({"silo": float("inf")}, {"silo": 8.0}, BudgetLeft.UNDER_QUARTER),
        ({"silo": float("nan")}, {"silo": 8.0}, BudgetLeft.UNDER_QUARTER),
    ],
)
def test_what_is_left_of_a_budget_is_a_coarse_bin_of_the_tightest_cap(spent, caps, left):
    assert budget_left_of(spent, caps) is left


# The operator's words -----------------------------------------------------------------------------


def test_a_word_holds_until_it_expires_and_each_by_itself(tmp_path):
    book = OperatorsWord(tmp_path)
    assert book.read(NOON) == Word()
    book.say(queue=3, now_unix_s=NOON, for_s=HOUR)
    book.say(free_gpu=FreeGpu.MOST, now_unix_s=NOON, for_s=2 * HOUR)
    found = book.read(NOON + HOUR - 1)
    assert (found.queue, found.free_gpu) == (3, FreeGpu.MOST)
    found = book.read(NOON + HOUR)
    assert (found.queue, found.free_gpu) == (None, FreeGpu.MOST)
    assert book.read(NOON + 2 * HOUR) == Word()
    said = now(word=book.read(NOON))
    assert (said.queue, said.free_gpu) == (3, FreeGpu.MOST)
    assert stat.S_IMODE((tmp_path / FACTS_FILE).stat().st_mode) == 0o600
    assert book.clear()
    assert not book.clear()
    assert book.read(NOON) == Word()


def test_what_is_out_of_bounds_is_not_kept(tmp_path):
    book = OperatorsWord(tmp_path)
    for word in ({"queue": -1}, {"queue": 1001}, {"free_gpu": "most"}):
        with pytest.raises(FactsError):
            book.say(**word, now_unix_s=NOON, for_s=HOUR)
    for for_s in (0, LONGEST_WORD_S + 1):
        with pytest.raises(FactsError, match="holds for"):
            book.say(queue=1, now_unix_s=NOON, for_s=for_s)
    assert not (tmp_path / FACTS_FILE).exists()


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", "3", "[" * 5000, '{"note": {"value": "x", "until_unix_s": 1}}',
        '{"queue": 3}', '{"queue": {"value": 3}}', '{"queue": {"value": "3", "until_unix_s": 9}}',
        '{"queue": {"value": 5000, "until_unix_s": 9}}',
        '{"queue": {"value": 3, "until_unix_s": -1}}',
        '{"queue": {"value": null, "until_unix_s": 9}}', '{"queue": [3, 9]}',
        '{"queue": {"value": 3, "until_unix_s": 1e99}}',
        '{"queue": {"value": 3, "until_unix_s": 9, "by": "me"}}',
        '{"free_gpu": {"value": "plenty", "until_unix_s": 9}}',
        '{"free_gpu": {"value": [], "until_unix_s": 9}}', "{}" + " " * 5000,
    ],
)  # fmt: skip
def test_a_damaged_file_says_nothing(tmp_path, content):
    (tmp_path / FACTS_FILE).write_text(content)
    book = OperatorsWord(tmp_path)
    with pytest.raises(LocalStoreError, match="facts clear"):
        book.read(NOON)
    with pytest.raises(LocalStoreError):
        book.say(queue=1, now_unix_s=NOON, for_s=HOUR)
    assert book.clear()
    assert book.read(NOON) == Word()


def test_the_words_go_with_a_silo_that_is_wiped():
    assert FACTS_FILE in PRIVATE


# Nothing of it is data ----------------------------------------------------------------------------

PRIVATE_ROOMS = (
    "evolution",
    "silo_agent.local_work",
    "silo_agent.attempt",
    "silo_agent.guard",
    "silo_agent.metrics",
    "silo_agent.machine",
)
"""Where what was explored, learned, remembered or measured is."""
OURS = ("secagg", "dp", "federation", "ops", "evolution", "server", "silo_agent", "lab", "chorale")


def imported_by(name, seen):
    """Every module of this project that one imports, and what they import in turn."""
    spec = find_spec(name)
    if name in seen or spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return
    seen.add(name)
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for found in names:
            if found.split(".")[0] in OURS and _is_module(found):
                imported_by(found, seen)


def _is_module(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("module", ["silo_agent.books.facts", "federation.membership.facts"])
def test_no_fact_can_depend_on_private_data(module):
    """What gathers facts reaches, by whatever way, no module that knows any."""
    seen = set()
    imported_by(module, seen)
    assert "secagg.canonical" in seen
    reached = {name for name in seen if name.startswith(PRIVATE_ROOMS)}
    assert reached == set()


def test_every_fact_names_its_source_and_the_page_has_them_all():
    assert set(SOURCES) == set(FACTS)
    for page in ("docs/operations.md", "deploy/examples/policy.toml"):
        assert "[facts]" in (ROOT / page).read_text()
    text = (ROOT / "docs" / "operations.md").read_text()
    assert all(f"`{name}`" in text for name in FACTS)
