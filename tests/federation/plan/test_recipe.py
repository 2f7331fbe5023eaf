"""Cards, a plan's choice of parts, and the privacy modes that follow from both."""

import importlib
import itertools
import sys

import pytest

from dp.config import RECORD_MODES, Mode
from federation.errors import PlanError, UnknownPartError
from federation.plan.methods import (
    KINDS,
    METHODS,
    PARTS,
    Couples,
    MethodCard,
    Normaliser,
    PartCard,
    Reads,
    method_card,
    part_card,
)
from federation.plan.read import read_plan
from federation.plan.recipe import FED_SE, PartChoice, PartsSection, recipe_of, refusal
from tests.kit.paths import ROOT

PLAN = (ROOT / "deploy" / "examples" / "plan-record-local.toml").read_text()
SILO = (ROOT / "deploy" / "examples" / "plan-silo-dp.toml").read_text()
CARDS = """
from federation.plan.methods import Couples, MethodCard, Normaliser, PartCard, Reads
from federation.plan.section import Section

class Options(Section):
    alpha: float = 0.5

def part(kind, name, couples, reads):
    return PartCard(kind=kind, name=name, code="cards:Made", says="a part",
                    couples=couples, reads=reads, options=Options)

ADAPTIVE = part("sampler", "adaptive", Couples.ALL, Reads.SILO)
CENTRED = part("credit", "centred", Couples.ALL, Reads.SILO)
NAMES = dict(sampler="uniform", play="once", credit="all-tries", objective="nll")
EVEN = MethodCard(name="even", says="constant", normaliser=Normaliser.CONSTANT, parts=NAMES)
OWN = MethodCard(name="own", says="no recipe", code="cards:Own", needs_model=False)
BROKEN = "no card"
"""


def card(**changes):
    values = {
        "kind": "credit",
        "name": "mine",
        "code": "a.b:C",
        "says": "one line",
        "couples": Couples.TASK,
        "reads": Reads.UNIT,
    }
    return PartCard(**values | changes)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution as pip leaves it behind."""
    (tmp_path / "cards.py").write_text(CARDS)
    info = tmp_path / "chorale_extra-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Chorale_Extra\nVersion: 1.0\n")
    points = [
        "adaptive=ADAPTIVE",
        "centred=CENTRED",
        "even=EVEN",
        "own=OWN",
        "broken=BROKEN",
        "nll=ADAPTIVE",
    ]
    lines = [f"{name} = cards:{value}" for name, value in (one.split("=") for one in points)]
    (info / "entry_points.txt").write_text("\n".join(["[chorale.parts]", *lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield
    sys.modules.pop("cards", None)


def choose(**parts):
    return recipe_of(FED_SE, PartsSection(**parts))


def test_the_tables_are_whole():
    for name, one in METHODS.items():
        assert one.name == name == method_card(name).card.name
        for kind, part in one.parts.items():
            assert part_card(kind, part).card is PARTS[part]
    assert {one.kind for one in PARTS.values()} == set(KINDS)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Mine"},
        {"name": "a/b"},
        {"code": "a.b"},
        {"code": "a b:c"},
        {"says": "two\nlines"},
        {"says": ""},
        {"kind": "thing"},
        {"couples": "task"},
        {"kind": "sampler"},
        {"least_tries": True},
        {"least_window": 2.0},
        {"kind": "gate"},
        {"options": dict},
        {"needs": frozenset({"old"})},
        {"kind": "objective", "needs": frozenset({"worth"})},
        {"kind": "objective", "needs": frozenset({"old_value"})},
        {"least_tries": 1.5},
        {"least_window": True},
    ],
)
def test_what_is_no_card_is_refused(changes):
    with pytest.raises(UnknownPartError):
        card(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": {"sampler": "uniform"}},
        {"parts": {**METHODS[FED_SE].parts, "other": "once"}},
        {"parts": dict(METHODS[FED_SE].parts), "code": "a.b:C"},
        {"parts": {}, "needs_model": True},
    ],
)
def test_what_is_no_recipe_is_refused(changes):
    with pytest.raises(UnknownPartError):
        MethodCard(name="mine", says="one line", **changes)


def test_what_couples_or_reads_beyond_the_unit_does_not_run_at_record_level():
    within = {"task": {"try", "task"}, "user": {"try", "task", "user"}}
    for mode, unit, couples, reads, kind in itertools.product(
        Mode, ("task", "user"), Couples, Reads, KINDS
    ):
        outside = kind in {"sampler", "gate"}
        if outside and reads is Reads.UNIT:
            continue
        said = refusal(card(kind=kind, couples=couples, reads=reads), mode, unit)
        readable = {"public"} if outside else {"public", "unit"}
        apart = couples.value in within[unit] and reads.value in readable
        assert (said is None) is (mode not in RECORD_MODES or apart)
        if said:
            assert "'mine'" in said
            assert mode.value in said


def test_a_part_takes_the_place_of_the_methods_own():
    recipe = choose(credit="all-tries")
    assert {kind: part.card.name for kind, part in recipe.parts.items()} == {
        **METHODS[FED_SE].parts,
        "credit": "all-tries",
    }
    assert recipe.packages == ()
    assert choose(gate="not-worse").parts["gate"].card.reads is Reads.SILO


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"credit": "none-such"}, ["parts.credit", "unknown credit 'none-such'", "all-tries"]),
        (
            {"credit": PartChoice(name="none-such", package="chorale-x")},
            ["install chorale-x, which brings it"],
        ),
        ({"credit": "nll"}, ["'nll' is no credit", "own objective has that name"]),
        ({"credit": PartChoice(name="all-tries", package="chorale-x")}, ["needs no package"]),
        ({"credit": PartChoice(name="all-tries", alpha=1)}, ["parts.credit.alpha", "none"]),
    ],
)
def test_what_is_not_there_is_said_with_what_to_do(parts, words):
    with pytest.raises(UnknownPartError) as refused:
        choose(**parts)
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_method_that_is_no_recipe_has_no_parts():
    with pytest.raises(UnknownPartError, match="'constant' is no recipe"):
        recipe_of("constant", PartsSection(credit="all-tries"))


def test_a_package_brings_parts_and_methods(installed):
    named = PartChoice(name="adaptive", package="chorale-extra", alpha=0.25)
    recipe = choose(sampler=named)
    assert recipe.packages == ("chorale-extra",)
    assert recipe.parts["sampler"].options.alpha == 0.25
    with pytest.raises(UnknownPartError, match="package = 'chorale-extra'"):
        choose(sampler="adaptive")
    with pytest.raises(UnknownPartError, match=r"parts\.sampler\.beta.*alpha"):
        choose(sampler=PartChoice(name="adaptive", package="chorale-extra", beta=1))
    with pytest.raises(UnknownPartError, match="no PartCard of that name"):
        choose(credit=PartChoice(name="broken", package="chorale-extra"))
    # A name of Chorale's own stays Chorale's.
    assert part_card("objective", "nll").package == ""
    assert recipe_of("even", PartsSection()).method.normaliser is Normaliser.CONSTANT
    own = recipe_of("own", PartsSection())
    assert own.refusals(Mode.SILO, "task") == ()
    assert "no recipe" in own.refusals(Mode.RECORD_LOCAL, "task")[0]


def test_two_packages_with_one_name_give_neither(installed, tmp_path):
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[chorale.parts]\nadaptive = elsewhere:ADAPTIVE\n")
    with pytest.raises(UnknownPartError, match="two installed packages"):
        choose(sampler=PartChoice(name="adaptive", package="chorale-extra"))


def test_a_plan_is_refused_with_the_part_and_the_reason_where_units_are_apart(installed):
    parts = '\n[evolve.parts]\nsampler = { name = "adaptive", package = "chorale-extra" }\n'
    assert read_plan((SILO + parts).encode()).recipe.packages == ("chorale-extra",)
    with pytest.raises(PlanError) as refused:
        read_plan((PLAN + parts).encode())
    (problem,) = refused.value.problems
    assert problem.startswith("evolve.parts.sampler: sampler 'adaptive' couples 'all'")
    assert "record_local" in problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("local_epochs = 2\n", ["evolve.local_epochs", "released adapter alone"]),
        ("nominal_tokens = 9\n", ["nominal_tokens would change nothing"]),
        ('method = "even"\n', ["set nominal_tokens"]),
        ('method = "none-such"\n', ["unknown method 'none-such'", "fed-se"]),
        ('method = "grpo"\n', ["set nominal_tokens"]),
        (
            'method = "grpo"\nnominal_tokens = 9\ntemperature = 0.0\n',
            ["at temperature 0", "above 0"],
        ),
        (
            'method = "grpo"\nnominal_tokens = 9\ntries_per_task = 1\n',
            ["set tries_per_task to at least 2"],
        ),
        (
            'method = "grpo"\nnormaliser = "batch_tokens"\n',
            ["evolve.normaliser: batch_tokens", "record_local", "'constant'"],
        ),
        ('normaliser = "halves"\n', ["evolve.normaliser", "batch_tokens"]),
        (
            'method = "spear"\nnominal_tokens = 9\nwindow = 1\n',
            ["set window to at least 2, or to 0"],
        ),
        (
            'parts = { credit = "confident-replay" }\n',
            ["evolve.parts.credit: credit 'confident-replay' couples 'all'"],
        ),
        (
            'method = "grpo"\nnominal_tokens = 9\nparts = { objective = { name = "clipped", dual_clip = 0.5 } }\n',  # noqa: E501  # one line of TOML
            ["evolve: parts.objective: dual_clip is above 1"],
        ),
    ],
)
def test_keys_that_a_recipe_asks_for_or_has_no_use_for(installed, text, words):
    plan = PLAN.replace('method = "fed-se"\n', "" if "method" in text else 'method = "fed-se"\n')
    if "tries_per_task" in text:
        plan = plan.replace("tries_per_task = 4\n", "")
    if "window" in text:
        plan = plan.replace("window = 4\n", "")
    plan = plan.replace("[evolve]\n", f"[evolve]\n{text}")
    with pytest.raises(PlanError) as refused:
        read_plan(plan.encode())
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    ("sampler", "window", "tries", "problem"),
    [
        ("regret", 1, 4, "set window to at least 2, or to 0 for all"),
        ("regret", 2, 4, None),
        ("regret", 0, 1, "set tries_per_task to at least 2"),
        ("rerun", 0, 2, "set tries_per_task to at least 3"),
        ("failures", 0, 1, None),
        ("uniform", 1, 1, None),
    ],
)
def test_a_part_that_looks_at_earlier_tries_says_how_many_it_needs(sampler, window, tries, problem):
    keys = f'tries_per_task = {tries}\nwindow = {window}\nparts = {{ sampler = "{sampler}" }}'
    plan = SILO.replace("tries_per_task = 4", keys).encode()
    if problem is None:
        assert read_plan(plan).recipe.parts["sampler"].card.name == sampler
        return
    with pytest.raises(PlanError, match=problem):
        read_plan(plan)


def test_a_recipes_own_options_stay_but_for_those_that_a_plan_gives_the_same_part():
    def objective(method, **given):
        chosen = PartsSection(objective=PartChoice(name="clipped", **given)) if given else None
        return recipe_of(method, chosen or PartsSection()).parts["objective"].options

    assert (objective("grpo").clip_high, objective("grpo").kl) == (0.28, "k2")
    theirs = objective("fedagent")
    assert (theirs.clip_high, theirs.kl, theirs.kl_beta, theirs.kl_to) == (0.2, "k3", 0.01, "base")
    changed = objective("fedagent", kl_beta=0.5)
    assert changed == theirs.model_copy(update={"kl_beta": 0.5})
    # Another part in its place has options of its own.
    other = recipe_of("fedagent", PartsSection(objective="nll")).parts["objective"]
    assert other.card.name == "nll"
    assert recipe_of("fedagent", PartsSection()).parts["credit"].options.scale == "std"
    assert recipe_of("rloo", PartsSection()).parts["credit"].options.baseline == "others"


def test_a_card_gives_options_to_parts_that_it_has_alone():
    parts = METHODS["grpo"].parts
    with pytest.raises(UnknownPartError, match="a part that it does not have"):
        MethodCard(name="odd", says="odd", parts=parts, presets={"gate": {"at": 1}})
