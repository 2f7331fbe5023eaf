"""Foreign environments, engine and trainer in silo.toml: strict, bounded, and told by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from evolution.envs.foreign.spec import HarnessSpec, OpenEnvSpec
from evolution.envs.tasks import Shard, Split
from evolution.methods.evolver import Assignment
from evolution.rollout.engine import EngineSpec
from evolution.train.trainer import TrainerSpec
from federation.plan.read import read_plan
from silo_agent.config import SiloConfig, spec_of
from silo_agent.errors import ConfigError
from silo_agent.local_work.plan_terms import evolver_setup
from silo_agent.metrics import SiloMetrics
from tests.kit.paths import ROOT

DOCUMENT = ROOT / "docs" / "environments.md"
PLAN = ROOT / "deploy" / "examples" / "plan-fed-se.toml"
OPENENV = """
url = "ws://127.0.0.1:8001/ws"
instruction = "go"
max_steps = 5
success = { reward_at_least = 1.0 }
observation = ["text"]
action = { message = "{action}" }
"""


HARNESS = """
command = ["/opt/agent/run", "--fast"]
max_steps = 5
success = { reward_at_least = 1.0 }
"""


def load(directory: Path, text: str) -> SiloConfig:
    directory.mkdir(exist_ok=True)
    (directory / "silo.toml").write_text(text)
    return SiloConfig.load(directory)


def openenv(directory: Path, old: str = "", new: str = "") -> SiloConfig:
    assert old in OPENENV
    return load(
        directory, f'[foreign."openenv:x"]\n{OPENENV.replace(old, new) if old else OPENENV + new}'
    )


def test_a_described_environment_is_part_of_the_silo(tmp_path: Path):
    config = load(
        tmp_path,
        'environments = [{ environment = "openenv:x", shard_index = 1, shard_count = 2 }, "maze"]\n'
        f'[foreign."openenv:x"]\nfamily = "desk"\nlabels = ["a", "b"]\n{OPENENV}',
    )
    assert config.families() == ("desk", "maze")
    shard = Shard(index=1, count=2)
    assert config.assignments()[0] == Assignment(environment="openenv:x", shard=shard)
    environment = config.catalogue().make("openenv:x")
    assert environment.labels == ("a", "b")
    ids = environment.task_ids(Split.TRAIN, shard=shard)
    assert {environment.task_label(task) for task in ids[:10]} == {"b"}
    spec = config.foreign["openenv:x"]
    assert isinstance(spec, OpenEnvSpec)
    assert (spec.timeout_s, spec.max_message_bytes, spec.task_key) == (30.0, 1 << 20, "seed")


def test_the_operators_examples_are_the_environments(tmp_path: Path):
    config = openenv(tmp_path, "", "examples = [['seen', 'said'], ['more', 'done']]")
    environment = config.catalogue().make("openenv:x")
    assert environment.examples == (("seen", "said"), ("more", "done"))


def test_every_documented_table_is_accepted(tmp_path: Path):
    tables = [part.partition("```")[0] for part in DOCUMENT.read_text().split("```toml\n")[1:]]
    assert len(tables) >= 3
    kinds = set()
    for number, table in enumerate(table for table in tables if "[foreign." in table):
        config = load(tmp_path / str(number), table)
        kinds |= {name.partition(":")[0] for name in config.foreign}
    assert kinds == {"openenv", "agentgym", "gym", "reasoning-gym", "textworld", "trl"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("max_steps", "max_step", r"max_step: unknown key \(nearest: max_steps; known: .*url"),
        ("reward_at_least", "reward_least", "nearest: reward_at_least"),
        ("", "name = 'y'", "the table's own"),
        ("", "family = 'other'", "reserved"),
        ("", "labels = ['a', 'a']", "twice"),
        ("", "labels = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k']", "do not divide"),
        ("", "timeout_s = 'long'", "timeout_s"),
        ("", "timeout_s = inf", "timeout_s"),
        ("", "max_message_bytes = 99999999999", "max_message_bytes"),
        ("max_steps = 5", "max_steps = 5.0", "max_steps"),
        ("max_steps = 5", "max_steps = 2026-01-01", "no place in this table"),
        ("max_steps = 5", "", "max_steps: Field required"),
        ("success = { reward_at_least = 1.0 }", "", "success: Field required"),
        ("{ reward_at_least = 1.0 }", "{}", "exactly one"),
        ("{ reward_at_least = 1.0 }", "{ reward_at_least = 1.0, info = 'won' }", "exactly one"),
        ("{ reward_at_least = 1.0 }", "{ info = 'won' }", "no info"),
        ('"{action}"', '"act"', "exactly one value"),
        ('{ message = "{action}" }', '{ a = "{action}", b = "{action}" }', "exactly one value"),
        ("ws://127.0.0.1:8001/ws", "ws://10.0.0.1:8001/ws", "leaves this machine unprotected"),
        ("ws://127.0.0.1:8001/ws", "ws://127.0.0.1.evil.org/ws", "leaves this machine"),
        ("ws://127.0.0.1:8001/ws", "http://127.0.0.1:8001/ws", "not a ws:// or wss:// URL"),
        ("ws://127.0.0.1:8001/ws", "wss://me:secret@host/ws", "a user, a password"),
        ("ws://127.0.0.1:8001/ws", "wss://host:99999/ws", "not a URL"),
        ("", "tasks = { train = 0, held_out = 3 }", "no tasks to train on"),
        ("", "tasks = { train = [1, 2], held_out = [2] }", "twice"),
        ("", "tasks = { train = [1, 2], held_out = 4 }", "counts for all"),
        ("", "tasks = { train = [-1], held_out = [2] }", "tasks.train"),
        ("", "tasks = { train = 3 }", "tasks.held_out: Field required"),
        ("", "examples = [['seen', 'said', 'more']]", "examples"),
        ("", f"examples = {[['seen', 'said']] * 17}", "examples"),
        ("", "examples = [['seen', '']]", "examples"),
    ],
)
def test_a_table_that_cannot_be_honoured_is_an_error(tmp_path: Path, old, new, problem):
    with pytest.raises(ConfigError, match=f'foreign: "openenv:x": .*{problem}'):
        openenv(tmp_path, old, new)


def harness(directory: Path, old: str = "", new: str = "") -> SiloConfig:
    assert old in HARNESS
    text = HARNESS.replace(old, new) if old else f"{HARNESS}\n{new}"
    return load(directory, f'[foreign."harness:x"]\n{text}')


def test_a_harness_is_described_by_its_command(tmp_path: Path):
    spec = harness(tmp_path, new="environment = { LEVEL = '3' }").foreign["harness:x"]
    assert isinstance(spec, HarnessSpec)
    assert (spec.family, spec.command) == ("x", ("/opt/agent/run", "--fast"))
    assert (spec.reward_range, spec.max_forks, spec.at_once) == ((0.0, 1.0), 0, 8)
    assert (spec.timeout_s, spec.max_tokens, spec.max_empty_answers) == (600.0, 100_000, 3)
    assert (spec.max_body_bytes, spec.max_output_bytes) == (1 << 20, 1 << 16)
    said = harness(tmp_path, "{ reward_at_least = 1.0 }", "{ info = 'success' }")
    assert said.foreign["harness:x"].success.info == "success"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('["/opt/agent/run", "--fast"]', "[]", "command"),
        ('["/opt/agent/run", "--fast"]', '"/opt/agent/run"', "command"),
        ('"/opt/agent/run"', '"../run"', "neither an absolute path nor a name"),
        ('"--fast"', '"a\\u0000b"', "zero byte"),
        ("", "environment = { OPENAI_API_KEY = 'x' }", "the gateway's own"),
        ("", "environment = { CHORALE_TASK = 'x' }", "the gateway's own"),
        ("", "environment = { 'A B' = 'x' }", "cannot be a variable"),
        ("", "environment = { A = 3 }", "environment.A"),
        ("", "reward_range = [1.0, 1.0]", "reward_range"),
        ("", "reward_range = [0.0, inf]", "reward_range"),
        ("", "reward_range = [0.0, 0.5]", "outside reward_range"),
        ("reward_at_least = 1.0", "reward_at_least = 0.0", "outside reward_range, or is its least"),
        ("{ reward_at_least = 1.0 }", "{ return_at_least = 1.0 }", "one reward"),
        ("{ reward_at_least = 1.0 }", "{ info = 'won' }", 'only info = "success"'),
        ("success = { reward_at_least = 1.0 }", "", "success: Field required"),
        ("", "examples = [['seen', 'said']]", "writes its own prompts"),
        ("", "actions = ['go']", "writes its own prompts"),
        ("", "timeout_s = 0.0", "timeout_s"),
        ("", "max_forks = -1", "max_forks"),
        ("", "max_turns = 3", "max_turns: unknown key"),
        ("", "at_once = 0", "at_once"),
    ],
)
def test_a_harness_that_cannot_be_honoured_is_an_error(tmp_path: Path, old, new, problem):
    with pytest.raises(ConfigError, match=f'foreign: "harness:x": .*{problem}'):
        harness(tmp_path, old, new)


@pytest.mark.parametrize(
    "url", ["ws://localhost:1/ws", "ws://[::1]:1/ws", "wss://env.example.org/ws"]
)
def test_loopback_and_tls_are_accepted(tmp_path: Path, url: str):
    assert openenv(tmp_path, "ws://127.0.0.1:8001/ws", url).foreign["openenv:x"].url == url


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[foreign."gem:x"]', "not kind:alias"),
        ('[foreign."gym:X y"]', "not kind:alias"),
        ("foreign = 3", "foreign: expected"),
        ("[foreign]\n'gym:x' = 3", "not a table"),
        ('environments = ["openenv:x"]', "unknown environment 'openenv:x'"),
        (
            (
                'environments = [{ environment = "openenv:x", shard_index = 0, shard_count = 3 }]\n'
                f'[foreign."openenv:x"]\n{OPENENV}'
            ),
            "1 labels over 3 shards",
        ),
        (
            '[foreign."gym:x"]\ninstruction = "a"\nmax_steps = 1\nsuccess = { info = "won" }',
            "either id or entry_point",
        ),
        ('rollout = { kind = "magic" }', "rollout: kind"),
        ("rollout = { worker = 2 }", r"worker: unknown key \(nearest: workers"),
        ('rollout = { workers = "2" }', "rollout: workers"),
        ("training = { gradient_checkpoints = true }", "nearest: gradient_checkpointing"),
        ("training = 3", "training:"),
        ("enviroments = []", "enviroments: unknown key .nearest: environments"),
    ],
)
def test_a_wrong_file_names_what_is_wrong(tmp_path: Path, text: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        load(tmp_path, text)


def test_engine_and_trainer_are_read_from_their_fields(tmp_path: Path):
    config = load(
        tmp_path,
        '[rollout]\nkind = "openai"\nurl = "http://127.0.0.1:8000"\napi_key_file = "key"\n'
        "[training]\nmicro_batch_tokens = 4096\n",
    )
    assert config.rollout.kind == "openai"
    assert config.rollout.api_key_file == tmp_path / "key"
    assert config.training.micro_batch_tokens == 4096
    empty = load(tmp_path, "")
    assert (empty.rollout, empty.training) == (EngineSpec(), TrainerSpec())


def test_a_field_that_a_spec_gains_is_a_key(tmp_path: Path):
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Spec:
        needed: int
        directory: Path | None = None

        def __post_init__(self) -> None:
            if self.needed > 3:
                raise ValueError("too many")

    assert spec_of(Spec, {"needed": 3, "directory": "a"}, directory=tmp_path) == Spec(
        needed=3, directory=tmp_path / "a"
    )
    for table in ({"needed": 4}, {}, {"needed": True}, {"needed": 1, "directory": 2}):
        with pytest.raises(ValueError):
            spec_of(Spec, table)


def test_a_method_gets_what_the_silo_has(tmp_path: Path):
    config = load(
        tmp_path,
        'environments = ["craft"]\n[training]\nmicro_batch_tokens = 64\n'
        f'[foreign."openenv:x"]\n{OPENENV}',
    )
    named = '["craft", "openenv:x", "openenv:elsewhere"]'
    text = PLAN.read_text().replace('["maze", "wordle", "craft", "babyai"]', named)
    asked = read_plan(text.encode())
    assert asked.evolve.environments == ("craft", "openenv:x", "openenv:elsewhere")
    setup = evolver_setup(config, asked, state_dir=tmp_path, privacy=None)
    assert [a.environment for a in setup.assignments] == ["craft"]
    # Judged on what this silo has, also where it does not explore; not on what only others have.
    assert setup.judged == ("craft", "openenv:x")
    assert setup.catalogue is config.catalogue()
    assert setup.engine is config.rollout
    assert setup.trainer.micro_batch_tokens == 64


def test_a_declared_family_has_figures_of_its_own_and_others_are_counted_together():
    metrics = SiloMetrics(families=("desk", "craft"))
    played = {"desk": 4, "craft": 2, "stranger": 8}
    metrics.observe_evolution(episodes=played, successes={"desk": 1, "stranger": 8}, figures={})
    name = "chorale_silo_success_ratio"
    ratios = [
        metrics.registry.get_sample_value(name, {"environment": family})
        for family in ("desk", "craft", "other", "stranger")
    ]
    assert ratios == [0.25, 0.0, 1.0, None]
