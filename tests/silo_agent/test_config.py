"""silo.toml: known keys only, environment over file, a base model that is really there."""

import math
from pathlib import Path

import pytest

from evolution.envs.tasks import Shard
from evolution.methods.evolver import Assignment
from evolution.model.identity import base_sha256
from federation.plan.methods import MethodCard
from federation.plan.recipe import PartChoice, PartsSection, Recipe, recipe_of
from silo_agent.config import NO_BASE_MODEL, SiloConfig, write_starter
from silo_agent.errors import ConfigError
from silo_agent.machine.machine import site_of

CONSTANT, FED_SE = (recipe_of(name, PartsSection()) for name in ("constant", "fed-se"))
ALL_TRIES = recipe_of("fed-se", PartsSection(credit=PartChoice(name="all-tries")))
ANOTHER = Recipe(
    method=MethodCard(name="another", says="its own code", code="a.b:C", needs_model=False),
    package="another",
    parts={},
)


def load(directory: Path, text: str) -> SiloConfig:
    (directory / "silo.toml").write_text(text)
    return SiloConfig.load(directory)


def base_model(directory: Path) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


def test_a_full_file_is_read(tmp_path: Path):
    model = base_model(tmp_path / "base")
    config = load(
        tmp_path,
        """
        policy_file = "site/policy.toml"
        base_model = "base"
        probes_listen = "127.0.0.1:9464"
        threads = 2
        seed = 7
        evaluate = false
        held_out_offset = 208
        environments = ["maze", { environment = "craft", shard_index = 1, shard_count = 4 }]
        [constant]
        value = nan
        family = "tests"
        [evolve]
        buffer_capacity = 100
        """,
    )
    assert config.data_dir == tmp_path
    assert config.policy_file == tmp_path / "site/policy.toml"
    assert config.base_model == model
    assert config.base_sha256().hex() == base_sha256(model)
    assert config.assignments() == (
        Assignment(environment="maze"),
        Assignment(environment="craft", shard=Shard(index=1, count=4)),
    )
    assert config.families() == ("craft", "maze", "tests")
    assert config.options(FED_SE) == {"buffer_capacity": 100}
    assert config.options(ALL_TRIES) == {"buffer_capacity": 100}
    assert math.isnan(config.options(CONSTANT)["value"])
    assert config.options(ANOTHER) == {}
    assert (config.threads, config.seed, config.held_out_offset) == (2, 7, 208)
    assert not config.evaluate


def test_an_empty_file_is_a_silo_without_model_or_environments(tmp_path: Path):
    config = load(tmp_path, "")
    assert config.base_sha256() == NO_BASE_MODEL
    assert config.families() == ()
    assert config.policy_file == tmp_path / "policy.toml"
    assert config.probes_listen == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("thread = 2", "thread: unknown key .*threads"),
        ("[transport]\ntimeout_s = 3", "transport: unknown key"),
        ("threads = 0", "threads"),
        ('threads = "many"', "threads"),
        ('probes_listen = "9464"', "host:port"),
        ('probes_listen = "127.0.0.1:99999"', "host:port"),
        ('environments = ["chess"]', "unknown environment 'chess'"),
        ('environments = ["maze", "maze"]', "once"),
        ('environments = [{ environment = "maze", shards = 4 }]', "unknown key"),
        ('environments = [{ environment = "maze", shard_index = 1 }]', "go together"),
        (
            'environments = [{ environment = "maze", shard_index = 4, shard_count = 4 }]',
            "no shard 4 of 4",
        ),
        (
            'environments = [{ environment = "maze", declared_tasks = 417 }]',
            "417 is no round number.*such as 400",
        ),
        ('environments = [{ environment = "maze", declared_tasks = 0 }]', "declared_tasks"),
        ('base_model = "missing"', "is no directory"),
        ('base_model = "nobody/nothing-of-this-name"', "neither a directory nor a model"),
        ("threads = ", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_honoured_is_an_error(tmp_path: Path, text: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        load(tmp_path, text)


def test_the_guardian_is_shown_what_is_written_down_and_no_store(tmp_path: Path):
    entries = '[{ environment = "craft", declared_tasks = 1200 }, "maze"]'
    site = site_of(load(tmp_path, f"environments = {entries}"))
    assert site.environments == {"craft": 1200, "maze": None}
    assert site.base_sha256 == NO_BASE_MODEL
    assert [path.name for path in tmp_path.iterdir()] == ["silo.toml"]


def test_the_environment_overrides_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CHORALE_SILO_THREADS", "4")
    monkeypatch.setenv("CHORALE_SILO_ENVIRONMENTS", '["craft"]')
    config = load(tmp_path, 'threads = 2\nenvironments = ["maze"]')
    assert config.threads == 4
    assert config.families() == ("craft",)


@pytest.mark.parametrize(
    ("name", "value"),
    [("CHORALE_SILO_THREAD", "4"), ("CHORALE_SILO_ENVIRONMENTS", "[")],
)
def test_a_wrong_override_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="environment"):
        load(tmp_path, "")


def test_a_table_of_options_can_be_overridden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CHORALE_SILO_CONSTANT", '{"value": 4.0}')
    monkeypatch.setenv("CHORALE_SILO_EVOLVE", '{"buffer_capacity": 5}')
    config = load(tmp_path, "[constant]\nvalue = 2.0\n[evolve]\nbuffer_capacity = 9")
    assert config.options(CONSTANT) == {"value": 4.0}
    assert config.options(FED_SE) == {"buffer_capacity": 5}


def test_the_table_of_recipes_is_read_under_its_old_name_too(tmp_path: Path):
    config = load(tmp_path, "[fed-se]\nbuffer_capacity = 9")
    assert config.options(FED_SE) == {"buffer_capacity": 9}
    with pytest.raises(ConfigError, match="one table: join them"):
        load(tmp_path, "[fed-se]\nbuffer_capacity = 9\n[evolve]\nbuffer_capacity = 9")


def test_a_base_model_without_weights_is_found_out_when_its_digest_is_asked_for(tmp_path: Path):
    (tmp_path / "base").mkdir()
    config = load(tmp_path, 'base_model = "base"')
    with pytest.raises(ConfigError, match="no safetensors weights"):
        config.base_sha256()


def test_a_missing_file_says_what_to_do(tmp_path: Path):
    with pytest.raises(ConfigError, match="chorale-silo join"):
        SiloConfig.load(tmp_path)


def test_the_starter_is_valid_and_never_overwritten(tmp_path: Path):
    model = base_model(tmp_path / "base")
    assert write_starter(tmp_path, base_model=str(model))
    assert SiloConfig.load(tmp_path).base_model == model
    assert not write_starter(tmp_path)
    assert SiloConfig.load(tmp_path).base_model == model


def test_the_starter_without_a_model_is_valid(tmp_path: Path):
    write_starter(tmp_path)
    assert SiloConfig.load(tmp_path).base_model is None
