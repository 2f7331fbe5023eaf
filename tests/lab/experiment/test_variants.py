"""Variants in an experiment: who gets which, what is refused, and where everybody is judged."""

import re

import pytest

import evolution.methods.exploring
import lab.experiment.judge
from evolution.envs.tasks import Split
from lab.experiment.errors import ExperimentFileError
from lab.experiment.single_run import play_run
from lab.experiment.tasks.environments import judged_catalogue
from lab.experiment.tasks.own_tasks import FewTasks
from tests.kit.lab.experiment_samples import HEAD, runs, setting, silo

MARKETS = "".join(
    silo(n, environment="market", count=1, shard_index=0, demonstrations=0) for n in range(4)
)
ALL = '\n[variants]\nkind = "field-subset"\ndescriptor = true\n'


def places(run):
    return [
        None if one.variant is None else (one.variant.kind, one.variant.place) for one in run.silos
    ]


def test_silos_are_numbered_from_one_and_settings_may_say_otherwise(tmp_path):
    rows = (
        setting("fields", "fedse")
        + setting("silent", "fedse", "variants = { descriptor = false }")
        + setting("weights", "fedse", 'variants = { kind = "bm25-reweighting", pool = 8 }')
        + setting("plain", "fedse", 'variants = { kind = "none" }')
    )
    fields, silent, weights, plain = runs(tmp_path, HEAD + ALL + MARKETS + rows)
    assert [one.variant.index for one in fields.silos] == [1, 2, 3, 4]
    assert places(fields) == [("field-subset", place) for place in (0, 0, 3, 1)]
    assert [one.variant.descriptor for one in fields.silos] == [True] * 4
    assert [one.variant.descriptor for one in silent.silos] == [False] * 4
    assert all(one.variant.kind == "bm25-reweighting" for one in weights.silos)
    assert not any(one.variant.descriptor for one in weights.silos)
    assert places(plain) == [None] * 4
    assert len({run.sha256 for run in (fields, silent, weights, plain)}) == 4


def test_a_run_without_variants_is_the_run_that_it_was(tmp_path):
    rows = setting("one", "fedse")
    (without,) = runs(tmp_path, HEAD + MARKETS + rows)
    (none,) = runs(tmp_path, HEAD + '\n[variants]\nkind = "none"\n' + MARKETS + rows)
    assert none.sha256 == without.sha256
    assert not any("variant" in silo for silo in without.described()["silos"])


def test_each_member_explores_its_own_and_all_are_judged_in_one(tmp_path):
    (run,) = runs(tmp_path, HEAD + ALL + MARKETS + setting("one", "fedse"))

    def seen(environment):
        environment.reset(environment.task_ids(Split.HELD_OUT)[0])
        return environment.told, environment.step("search warm coat")[0]

    own = [seen(FewTasks(run, [index]).make("market")) for index in range(4)]
    judged = seen(judged_catalogue(run).make("market"))
    assert own[0] == own[1] == judged, "the first subset is the market as it is"
    assert len({own[0], own[2], own[3]}) == 3


def test_a_silo_may_have_a_variant_of_its_own(tmp_path):
    one = silo(0, environment="market", count=1, shard_index=0, demonstrations=0).rstrip("\n")
    one += '\nvariant = { kind = "catalog-split", index = 9, env_div = 0.5 }\n'
    rest = MARKETS.replace('"silo-0"', '"silo-9"')
    (run,) = runs(tmp_path, HEAD + one + rest + setting("one", "fedse"))
    assert places(run) == [("catalog-split", 0), None, None, None, None]
    assert run.silos[0].variant.split == (0.5, 0.7)
    with pytest.raises(ExperimentFileError, match="silo-0' has a variant of its own"):
        runs(tmp_path, HEAD + ALL + one + rest + setting("one", "fedse"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            ALL + MARKETS + setting("one", "central_evolution"),
            'set variants = { kind = "none" } here',
        ),
        (ALL + MARKETS + silo(7, shard_index=0) + setting("one", "fedse"), "craft has no search"),
        (ALL.replace("descriptor", "descriptr") + MARKETS + setting("one", "fedse"), "descriptor"),
        (
            ALL + MARKETS + setting("one", "fedse", "variants = { env_div = 0.5 }"),
            "has no use for it",
        ),
        (
            MARKETS
            + 'variant = { kind = "field-subset", index = 1, descriptor = true }\n'
            + setting("one", "fedse"),
            "set descriptor alike in all",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_what_to_do(tmp_path, text, said):
    with pytest.raises(ExperimentFileError, match=re.escape(said)):
        runs(tmp_path, HEAD + text)


def test_a_pooled_learner_may_learn_where_all_are_judged(tmp_path):
    rows = setting("one", "central_evolution", 'variants = { kind = "none" }')
    (run,) = runs(tmp_path, HEAD + ALL + MARKETS + rows)
    assert places(run) == [None] * 4


def test_a_run_explores_variants_is_judged_without_them_and_can_be_repeated(tmp_path, monkeypatch):
    """A wrapper with chance in it: equal runs are equal, and the judge sees no variant."""
    head = HEAD.replace("rounds = 2", "rounds = 1").replace("held_out = 16", "held_out = 8")
    silos = "".join(
        silo(n, environment="market", count=1, shard_index=0, demonstrations=2) for n in range(3)
    )
    table = '\n[variants]\nkind = "rank-wrapper"\ndescriptor = true\n'
    (run,) = runs(tmp_path, head + table + silos + setting("x", "fedse"))
    told = {"explored": [], "judged": []}

    def noted(module, name):
        play = module.run_episodes

        def playing(engine, tasks, *, make_environment, **rest):
            told[name].append(make_environment("market").told)
            return play(engine, tasks, make_environment=make_environment, **rest)

        monkeypatch.setattr(module, "run_episodes", playing)

    noted(evolution.methods.exploring, "explored")
    noted(lab.experiment.judge, "judged")
    results = [play_run(run, tmp_path / str(n), progress=lambda *_: None) for n in range(2)]
    lines = [text.partition(" . ")[0] for text in told["explored"]]
    assert lines == ["page 1 2 3", "page 1 2 3", "page not known"] * 2
    assert {text.partition(" . ")[0] for text in told["judged"]} == {"page 1 2 3"}
    timeless = [
        [{k: v for k, v in row.items() if k != "wall_s"} for row in result.rows]
        for result in results
    ]
    assert timeless[0] == timeless[1]
