"""Five variants over two environments that share no code: what each changes and what it may not."""

from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from evolution.envs.builtin.shop.goods import market_stages
from evolution.envs.builtin.shop.market import Market
from evolution.envs.catalogue import make
from evolution.envs.environment import MAX_OBSERVATION_WORDS
from evolution.envs.tasks import Split
from evolution.envs.variants.bm25_reweighting import CONSTANTS
from evolution.envs.variants.catalog_split import split_catalog
from evolution.envs.variants.content import Content, Document, Wish
from evolution.envs.variants.lookalike import DIMENSIONS, inject_lookalikes
from evolution.envs.variants.measured import first_differs, jaccard, replayed, top_jaccard
from evolution.envs.variants.rank_wrapper import RankWrapper
from evolution.envs.variants.seeds import assigned
from evolution.envs.variants.spec import KINDS, VariantSpec
from evolution.envs.variants.stages import Searchable
from evolution.envs.variants.variant import descriptor_of, stages_of, varied
from evolution.errors import EnvironmentSetupError
from lab.base.tokenizer import UNKNOWN, build_tokenizer, environment_words
from tests.kit.evolution.library import BOOKS, Library

STAGED = tuple(kind for kind in KINDS if kind != "none")
MARKET = market_stages()
QUERIES = [wish.words for wish in MARKET.content.wishes[::24]]


def spec(kind, index=7, **more):
    return VariantSpec(kind=kind, index=index, **more)


def play(environment, task_id):
    """An expert's episode: every observation and action, and whether it was a success."""
    seen = [environment.reset(task_id)[0]]
    while True:
        action = environment.expert_action(np.random.default_rng(0))
        observation, _, terminated, truncated, info = environment.step(action)
        seen += [action, observation]
        if terminated or truncated:
            return seen, environment.success(info)


# Assignment ---------------------------------------------------------------------------------------


def test_a_hundred_silos_have_the_papers_counts():
    counts = Counter(assigned(index, 4) for index in range(1, 101))
    assert [counts[place] for place in range(4)] == [21, 20, 32, 27]
    from_zero = Counter(assigned(index, 4) for index in range(100))
    assert [from_zero[place] for place in range(4)] == [21, 19, 33, 27], "the code's, not ours"


@pytest.mark.parametrize("kind", ["field-subset", "bm25-reweighting", "lookalike", "rank-wrapper"])
def test_a_spec_has_the_place_that_the_rule_gives(kind):
    places = Counter(spec(kind, index).place for index in range(1, 101))
    assert [places[place] for place in range(4)] == [21, 20, 32, 27]


def test_a_pool_of_eight_is_drawn_from_whole():
    places = {spec("bm25-reweighting", index, pool=8).place for index in range(1, 101)}
    assert places == set(range(8))
    assert len(set(CONSTANTS)) == 8


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"kind": "none", "index": 3}, "index"),
        ({"kind": "none", "env_div": 0.5}, "env_div"),
        ({"kind": "catalog-split", "index": 3, "pool": 4}, "pool"),
        ({"kind": "field-subset", "index": 3, "keep_ratio": 0.5}, "keep_ratio"),
        ({"kind": "field-subset", "index": 3, "pool": 5}, "pool"),
        ({"kind": "lookalike", "index": 3, "pool": 8}, "pool"),
        ({"kind": "lookalike", "choice": 4}, "choice"),
        ({"kind": "bm25-reweighting"}, "index"),
        ({"kind": "rank-wrapper", "choice": 1}, "index"),
        ({"kind": "catalog-split"}, "index"),
        ({"kind": "catalog-split", "index": 0}, "index"),
        ({"kind": "catalog-split", "index": 1, "env_div": 1.5}, "env_div"),
        ({"kind": "catalogue-split", "index": 1}, "kind"),
        ({"kind": "none", "silo": 3}, "silo"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_by_the_keys_name(table, key):
    with pytest.raises(ValidationError, match=key):
        VariantSpec.model_validate(table)


# Catalog Split ------------------------------------------------------------------------------------


def paper_sized():
    """FedAgent's counts: 415 targets, 30 held out and 555 others."""
    documents = tuple(Document(key=f"P{n}", text={"title": ("x",)}) for n in range(1000))
    wishes = tuple(Wish(target=f"P{n}", words=("x",)) for n in range(415))
    held_out = frozenset(f"P{n}" for n in range(415, 445))
    return Content(documents=documents, wishes=wishes, held_out=held_out)


def keys(content):
    return {one.key for one in content.documents}


def test_catalogues_have_the_papers_size_and_its_distances():
    content = paper_sized()
    found = [keys(split_catalog(content, index=index)) for index in range(1, 21)]
    assert {len(one) for one in found} == {803}
    assert all(content.targets <= one and not one & content.held_out for one in found)
    pairs = [(a, b) for n, a in enumerate(found) for b in found[:n]]
    whole = np.mean([jaccard(a, b) for a, b in pairs])
    others = np.mean([jaccard(a - content.targets, b - content.targets) for a, b in pairs])
    assert whole == pytest.approx(0.75, abs=0.01)
    assert others == pytest.approx(0.54, abs=0.01)


def test_the_dial_goes_from_one_catalogue_to_each_its_own():
    content = paper_sized()

    def apart(env_div):
        one, other = (split_catalog(content, index=i, env_div=env_div) for i in (1, 2))
        return jaccard(keys(one), keys(other))

    assert apart(0.0) == 1.0
    assert apart(0.0) > apart(0.3) > apart(0.6) > apart(1.0)
    small = split_catalog(content, index=1, keep_ratio=0.0)
    assert keys(small) == content.targets
    assert len(keys(split_catalog(content, index=1, keep_ratio=1.0))) == 970


# What variants do to the market -------------------------------------------------------------------


@pytest.mark.parametrize("kind", STAGED)
def test_a_variant_leaves_tasks_alone_and_replaces_its_own_stages_only(kind):
    chosen = {} if kind == "catalog-split" else {"choice": 1}
    plain, other = Market(), varied(Market(), spec(kind, **chosen))
    tasks = [*plain.task_ids(Split.TRAIN)[:24], *plain.task_ids(Split.HELD_OUT)[:24]]
    assert [plain.reset(t)[0] for t in tasks] == [other.reset(t)[0] for t in tasks]
    stages = {
        "catalog-split": {"content"},
        "field-subset": {"encoding"},
        "bm25-reweighting": {"matching"},
        "lookalike": {"content"},
        "rank-wrapper": {"rendering"},
    }[kind]
    for name in ("content", "encoding", "matching", "rendering"):
        same = getattr(plain.stages, name) == getattr(other.stages, name)
        assert same == (name not in stages)
    assert (plain.name, plain.family, plain.labels) == (other.name, other.family, other.labels)


@pytest.mark.parametrize("kind", STAGED)
def test_a_variant_changes_what_is_found(kind):
    chosen = {} if kind == "catalog-split" else {"choice": 2}
    found = replayed(stages_of(MARKET, spec(kind, **chosen)), QUERIES)
    assert found != replayed(MARKET, QUERIES)


def test_the_first_of_a_pool_is_the_market_as_it_is():
    plain = replayed(MARKET, QUERIES)
    for kind in ("field-subset", "bm25-reweighting", "rank-wrapper"):
        assert replayed(stages_of(MARKET, spec(kind, choice=0)), QUERIES) == plain


def test_field_subsets_see_their_fields_only():
    def found(choice, *words):
        stages = stages_of(MARKET, VariantSpec(kind="field-subset", choice=choice))
        (results,) = replayed(stages, [words])
        return results

    assert found(1, "warm")
    assert not found(1, "wool"), "titles say warm"
    assert found(2, "wool"), "descriptions say wool"
    assert found(3, "red"), "bullet points say colours"
    assert not found(1, "red")


@pytest.mark.parametrize("choice", range(len(DIMENSIONS)))
def test_a_lookalike_is_found_beside_its_target_and_solves_no_task(choice):
    content = MARKET.content
    made = inject_lookalikes(content, choice)
    clones = [one for one in made.documents if one.key not in keys(content)]
    dimensions = DIMENSIONS[choice]
    assert len(clones) > 200
    wishes = {}
    for wish in content.wishes:
        wishes.setdefault(wish.target, []).append(wish)
    originals = {one.key: one for one in content.documents}
    places = {one.key: n for n, one in enumerate(made.documents)}
    for clone in clones:
        prefix, dimension, target, mark = clone.key.split("_")
        assert (prefix, dimension, len(mark)) == ("LK", "+".join(dimensions), 4)
        assert abs(places[clone.key] - places[target]) == 1
        for wish in wishes[target]:
            if "price" in dimensions:
                assert clone.price > wish.budget
            for name in set(dimensions) - {"price"}:
                assert wish.options[name] not in clone.options[name]
        for name in {"price", "colour", "size"} - set(dimensions):
            one = originals[target]
            if name == "price":
                assert clone.price == one.price
            else:
                assert clone.options[name] == one.options[name]
        assert {f: len(w) for f, w in clone.text.items()} == {
            f: len(w) for f, w in originals[target].text.items()
        }
    before = sum(places[c.key] < places[c.key.split("_")[2]] for c in clones) / len(clones)
    assert 0.4 < before < 0.6
    assert inject_lookalikes(content, choice).documents == made.documents


def test_buying_a_lookalike_of_what_is_asked_for_is_no_success():
    market = varied(Market(), VariantSpec(kind="lookalike", choice=0))
    keys_of = {}
    for wish in MARKET.content.wishes:
        said = (*wish.words, *sorted(wish.options.values()), wish.budget)
        keys_of.setdefault(said, set()).add(wish.target)
    bought = []
    for task_id in market.task_ids(Split.TRAIN)[:200]:
        market.reset(task_id)
        goal = market._goal
        asked = keys_of[(*goal.words, *sorted((goal.colour, goal.size)), float(goal.budget))]
        market.step("search " + " ".join(goal.words))
        for place, number in enumerate(market._shown(), start=1):
            key = market.stages.content.documents[number].key
            if key.startswith("LK_") and key.split("_")[2] in asked:
                market.step(f"open {place}")
                market.step(f"pick {goal.colour}")
                market.step(f"pick {goal.size}")
                _, reward, _, _, info = market.step("buy")
                bought.append((reward, market.success(info)))
                break
    assert len(bought) > 10
    assert all(0.5 < reward < 1 and not success for reward, success in bought)


def test_rank_wrappers_do_to_a_ranking_what_they_say():
    ranked = tuple(range(100, 300))

    def shown(order, seed=0):
        wrapper = RankWrapper(order=order, index=3)
        assert wrapper.seed == 45
        return wrapper.show(ranked, documents=2000, rng=np.random.default_rng(seed))

    assert shown("reverse") == list(range(109, 99, -1))
    shuffled = {number for seed in range(200) for number in shown("shuffle", seed)}
    assert shuffled == set(range(100, 150))
    assert all(len(set(shown("shuffle", seed))) == 10 for seed in range(20))
    drawn = [shown("random", seed) for seed in range(400)]
    kept = sum(one == list(range(100, 110)) for one in drawn) / len(drawn)
    assert 0.42 < kept < 0.58
    others = [n for one in drawn if one != list(range(100, 110)) for n in one]
    assert max(others) > 1500
    assert min(others) < 100


@pytest.mark.parametrize("choice", [1, 3])
def test_chance_follows_from_the_silo_the_task_and_the_search_alone(choice):
    def results(index, task_id, searches, *, after=()):
        market = varied(Market(), spec("rank-wrapper", index, choice=choice))
        for other in after:
            market.reset(other)
            market.step("search coat")
        market.reset(task_id)
        return [market.step("search warm coat")[0] for _ in range(searches)]

    tasks = Market().task_ids(Split.TRAIN)
    alone = results(4, tasks[8], 4)
    assert results(4, tasks[8], 4, after=tasks[:3]) == alone, "no earlier episode counts"
    assert len(set(alone)) > 1, "searching again draws anew"
    assert results(5, tasks[8], 4) != alone
    assert results(4, tasks[16], 4) != alone


def test_two_objects_of_a_variant_play_alike_and_share_an_index():
    one, other = (varied(make("market"), spec("catalog-split", 3)) for _ in range(2))
    assert one.stages is other.stages
    for task_id in one.task_ids(Split.TRAIN)[:6]:
        assert play(one, task_id) == play(other, task_id)


def test_observations_of_a_variant_stay_short_and_inside_the_vocabulary():
    for kind in STAGED:
        market = varied(Market(), spec(kind, 3))
        for task_id in market.task_ids(Split.TRAIN)[:30]:
            for text in play(market, task_id)[0]:
                assert set(text.split()) <= Market.vocabulary
                assert len(text.split()) <= MAX_OBSERVATION_WORDS


def test_measures_are_of_sets_and_of_first_places():
    one = [("a", "b"), ("c",), ()]
    other = [("b", "a"), ("d",), ()]
    assert top_jaccard(one, other) == pytest.approx(2 / 3)
    assert first_differs(one, other) == pytest.approx(2 / 3)


# Another environment ------------------------------------------------------------------------------


def test_every_variant_works_on_an_environment_that_knows_nothing_of_the_shop():
    assert isinstance(Library(), Searchable)
    plain = Library()
    queries = [wish.words for wish in BOOKS.wishes]
    for kind in STAGED:
        chosen = {} if kind == "catalog-split" else {"choice": 1}
        if kind == "lookalike":
            chosen = {"choice": 0}
        library = varied(Library(), spec(kind, **chosen))
        assert library.reset(3) == plain.reset(3)
        assert all(replayed(library.stages, queries)), kind
    fewer = varied(Library(), spec("catalog-split", keep_ratio=0.25))
    assert len(fewer.stages.content.documents) == 8 + 4
    dear = varied(Library(), VariantSpec(kind="lookalike", choice=0))
    assert sum(d.key.startswith("LK_") for d in dear.stages.content.documents) == 8
    assert fewer.reset(0)[0] == "wanted: sea atlas"
    fewer.step("look for sea atlas")
    *_, info = fewer.step("take 1")
    assert fewer.success(info)


def test_what_an_environment_cannot_be_is_said():
    with pytest.raises(EnvironmentSetupError, match="bullet_points"):
        varied(Library(), VariantSpec(kind="field-subset", choice=3))
    with pytest.raises(EnvironmentSetupError, match="broken in size"):
        varied(Library(), VariantSpec(kind="lookalike", choice=2))
    with pytest.raises(EnvironmentSetupError, match="maze has no search"):
        varied(make("maze"), spec("catalog-split"))
    with pytest.raises(EnvironmentSetupError, match="leave descriptor out"):
        varied(make("maze"), VariantSpec(kind="none", descriptor=True))
    with pytest.raises(EnvironmentSetupError, match="asked for"):
        Content(documents=(), wishes=(Wish(target="B00", words=()),))
    with pytest.raises(EnvironmentSetupError, match="one key"):
        Content(documents=BOOKS.documents[:1] * 2, wishes=())


# The line that says which it is -------------------------------------------------------------------


def test_lines_tell_the_variants_of_a_pool_apart_in_words_that_the_small_model_knows():
    tokenizer = build_tokenizer(environment_words())
    unknown = tokenizer.convert_tokens_to_ids(UNKNOWN)
    for kind in STAGED:
        pool = max(KINDS[kind], default=0)
        if pool:
            specs = [spec(kind, choice=place, pool=pool) for place in range(pool)]
        else:
            specs = [spec(kind, index) for index in range(1, 101)]
        lines = [descriptor_of(Market(), one) for one in specs]
        assert len(set(lines)) == len(specs)
        clean = descriptor_of(Market(), specs[0], perturbed=False)
        assert (clean in lines) == (kind in ("field-subset", "bm25-reweighting", "rank-wrapper"))
        assert all(unknown not in tokenizer(line)["input_ids"] for line in [*lines, clean])
        assert all(line.endswith(" .") for line in lines)


def test_a_line_is_told_before_the_instruction_and_where_everybody_is_judged_too():
    silent = varied(Market(), spec("field-subset", choice=1))
    assert silent.told == silent.instruction == Market().told
    telling = varied(Market(), spec("field-subset", choice=1, descriptor=True))
    assert telling.told == f"search on 1 2 . {telling.instruction}"
    judged = varied(Market(), spec("field-subset", choice=1, descriptor=True), perturbed=False)
    assert judged.told == f"search on 1 2 3 4 5 . {judged.instruction}"
    assert judged.stages is Market().stages
