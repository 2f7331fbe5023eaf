"""A silo's variant on its way from silo.toml to an episode, and what stays the same outside."""

import pytest

import evolution.methods.recipe
from evolution.envs.catalogue import Catalogue
from evolution.envs.tasks import Split
from evolution.envs.variants.spec import VariantSpec
from evolution.errors import EnvironmentSetupError
from evolution.methods.evolver import Evaluation
from evolution.model.lora import initial_adapter
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError
from tests.kit.evolution.silos import silos

SPEC = VariantSpec(kind="field-subset", choice=2, descriptor=True)


def load(directory, environments):
    (directory / "silo.toml").write_text(f"environments = [{environments}]\n")
    return SiloConfig.load(directory)


def seen(environment):
    environment.reset(environment.task_ids(Split.TRAIN)[0])
    return environment.step("search warm coat")[0]


def test_a_catalogue_gives_the_silos_own_and_everybodys():
    known = Catalogue(variants={"market": SPEC})
    own, plain = known.make("market"), known.unperturbed().make("market")
    assert own.told.startswith("search on 3 . ")
    assert plain.told.startswith("search on 1 2 3 4 5 . ")
    assert seen(own) != seen(plain) == seen(Catalogue().make("market"))
    assert known.family("market") == "market"
    assert known.make("shop").descriptor == ""
    again = known.apart()
    assert seen(again.make("market")) == seen(own)
    assert seen(known.unperturbed().apart().make("market")) == seen(plain)
    assert seen(Catalogue().with_variants({"market": SPEC}).make("market")) == seen(own)


def test_a_variant_is_checked_before_anything_is_made():
    known = Catalogue()
    known.require_variant("market", SPEC)
    with pytest.raises(EnvironmentSetupError, match="shop has no search whose stages"):
        known.require_variant("shop", SPEC)
    with pytest.raises(EnvironmentSetupError, match="no line that says which it is"):
        known.require_variant("shop", VariantSpec(kind="none", descriptor=True))


def test_a_silo_has_its_variant_by_its_configuration(tmp_path):
    table = '{ environment = "market", variant = { kind = "field-subset", index = 7 } }'
    config = load(tmp_path, table)
    market = config.catalogue().make("market")
    assert market.stages.encoding.fields == ("description",)
    assert config.families() == ("market",), "nobody outside is told"
    assert config.assignments() == load(tmp_path, '"market"').assignments()


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ('{ kind = "field-subset", indx = 5 }', "indx"),
        ('{ kind = "field-subset", index = "5" }', "index"),
        ('{ kind = "field-subset", index = 5, env_div = 1.0 }', "no use for it"),
        ('{ kind = "bm25", index = 5 }', "kind"),
    ],
)
def test_a_wrong_variant_is_an_error_of_the_configuration(tmp_path, variant, said):
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, f'{{ environment = "market", variant = {variant} }}')


def test_an_environment_without_stages_is_an_error_of_the_configuration(tmp_path):
    table = '{ environment = "maze", variant = { kind = "lookalike", index = 6 } }'
    with pytest.raises(ConfigError, match="maze has no search"):
        load(tmp_path, table)


def test_a_silo_plays_its_own_and_is_judged_in_everybodys(tiny_base, tmp_path, monkeypatch):
    made = []

    def judge(engine, names, work, *, make_environment):
        del engine, work
        made.extend(make_environment(name).told for name in names)
        return []

    monkeypatch.setattr(evolution.methods.recipe, "judge", judge)
    adapter = initial_adapter(tiny_base, 2, 4.0, 0)
    known = Catalogue(variants={"market": SPEC})
    with silos(tiny_base, tmp_path, "market", rank=2, alpha=4.0) as make_silo:
        silo = make_silo(catalogue=known)
        assert silo._environments["market"].told.startswith("search on 3 . ")
        silo.evaluate(Evaluation(round=0, adapter=adapter, adapter_sha256="x"))
    assert [text.partition(" . ")[0] for text in made] == ["search on 1 2 3 4 5"]
