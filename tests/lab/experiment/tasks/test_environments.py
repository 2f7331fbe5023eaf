"""Environments of installed packages and those that the file describes."""

import json
import sys

import pytest

from lab.experiment.config import load_experiment
from lab.experiment.errors import ExperimentFileError
from lab.experiment.single_run import play_run, versions_of
from lab.experiment.tasks.environments import catalogue_of
from lab.report.lines import EvalLine, parse_line
from tests.kit.lab.experiment_samples import HEAD, runs, setting, silo, write

SMALL = HEAD.replace("held_out = 16", "held_out = 6").replace("rounds = 2", "rounds = 1")
ODD_EVEN = """
from evolution.envs import Environment
from evolution.envs.tasks import label_index, task_range


class OddEven(Environment):
    name = "oddeven"
    family = "arithmetic"
    max_steps = 1
    labels = ("odd", "even")
    instruction = "Say odd or even."

    def task_ids(self, split, *, shard=None):
        return task_range(split, labels=2, shard=shard)

    def reset(self, task_id):
        self.answer = self.labels[label_index(task_id, labels=2)]
        return f"number {task_id}", {}

    def step(self, action):
        return "", float(action == self.answer), True, False, {"won": action == self.answer}

    def success(self, info):
        return bool(info["won"])

    def close(self):
        pass
"""
THING = """
import gymnasium


class Anything(gymnasium.spaces.Text):
    def contains(self, x):
        return isinstance(x, str)


class Thing(gymnasium.Env):
    action_space = Anything(max_length=64)
    observation_space = gymnasium.spaces.Text(max_length=64)

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return f"thing {seed}", {}

    def step(self, action):
        return "over", float(self.seed % 2), True, False, {}
"""
FOREIGN = """
[foreign."gym:thing"]
entry_point = "thing_of_tests:Thing"
instruction = "Say anything."
max_steps = 2
success = { reward_at_least = 1.0 }
labels = ["a", "b"]
tasks = { train = 40, held_out = 6 }
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    (directory / "oddeven_of_tests.py").write_text(ODD_EVEN)
    (directory / "thing_of_tests.py").write_text(THING)
    info = directory / "oddeven_of_tests-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: oddeven-of-tests\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(
        "[chorale.environments]\noddeven = oddeven_of_tests:OddEven\n"
    )
    yield directory
    for name in ("oddeven_of_tests", "thing_of_tests"):
        sys.modules.pop(name, None)


def silos(name, count=2):
    made = [
        silo(k, environment=name, count=count, demonstrations=0).replace(
            f"shard_index = {k}", f"shard_index = {k % count}"
        )
        for k in range(3)
    ]
    return "".join(made)


def test_a_package_and_a_described_environment_are_explored_and_judged(tmp_path, site):
    head = SMALL.replace("[evolve]", 'plugins = ["oddeven"]\n[evolve]')
    mixed = silos("oddeven") + silo(3, environment="gym:thing", count=2, demonstrations=0).replace(
        "shard_index = 3", "shard_index = 1"
    )
    (run,) = runs(tmp_path, head + FOREIGN + mixed + setting("x", "fedse"))
    result = play_run(run, tmp_path / "scratch", progress=lambda *_: None)
    lines = [parse_line(json.dumps(row).encode()) for row in result.rows]
    evals = [line for line in lines if isinstance(line, EvalLine) and line.silo == -1]
    assert {(e.environment, e.family, e.label) for e in evals} == {
        ("oddeven", "arithmetic", "odd"),
        ("oddeven", "arithmetic", "even"),
        ("gym:thing", "thing", "a"),
        ("gym:thing", "thing", "b"),
    }
    # Whether the task's number is odd decides, and labels alternate: all of one and none of other.
    thing = {e.label: e.outcomes for e in evals if e.environment == "gym:thing"}
    assert sorted(thing.values()) == ["000", "111"]
    own = [line for line in lines if isinstance(line, EvalLine) and line.silo == 3 and line.own]
    assert {line.label for line in own} == {"b"}
    (explored,) = (row for row in result.rows if row["kind"] == "round")
    assert explored["episodes"] == {"arithmetic": 24, "thing": 8}
    assert versions_of(run)["oddeven-of-tests"] == "1.5"
    assert result.rows[-1]["config"]["foreign"]["gym:thing"]["max_steps"] == 2


def test_a_described_environment_decides_the_run_and_where_it_listens_does_not(tmp_path):
    calendar = FOREIGN.replace("gym:thing", "agentgym:thing").replace(
        'entry_point = "thing_of_tests:Thing"', 'url = "http://127.0.0.1:9"\nserver = "maze"'
    )
    text = SMALL + "{}" + silos("agentgym:thing") + setting("x", "fedse")

    def sha256(tables):
        loaded = load_experiment(write(tmp_path, text.format(tables)))
        (run,) = loaded.runs(base_dir=tmp_path, base_sha256="0" * 64)
        return run.sha256

    assert sha256(calendar) == sha256(calendar.replace("127.0.0.1:9", "127.0.0.1:8"))
    assert sha256(calendar) != sha256(calendar.replace("max_steps = 2", "max_steps = 3"))
    unused = calendar.replace("agentgym:thing", "agentgym:second")
    assert sha256(calendar) == sha256(calendar + unused)


def test_equal_tables_have_one_catalogue(tmp_path):
    text = SMALL + FOREIGN + silos("gym:thing") + setting("x", "fedse")
    one, other = (load_experiment(write(tmp_path, text)) for _ in range(2))
    assert catalogue_of(one) is catalogue_of(other)
    bare = load_experiment(write(tmp_path, SMALL + silos("craft") + setting("x", "fedse")))
    assert catalogue_of(bare) is not catalogue_of(one)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "max_steps = 2",
            "max_stepps = 2",
            'foreign."gym:thing".max_stepps: unknown key; the near',
        ),
        ("max_steps = 2", "max_steps = 0", 'foreign."gym:thing".max_steps: '),
        ("max_steps = 2", 'name = "x"', "the name is the table's own"),
        ('"gym:thing"]', '"gim:thing"]', "foreign.\"gim:thing\": 'gim:thing' is not kind:alias"),
        ("40, held_out = 6", "40, held_out = 0", "adapters are judged there"),
        ("demonstrations = 0", "demonstrations = 1", "'gym:thing' has no expert"),
        (
            "shard_count = 2",
            "shard_count = 3",
            "the 2 labels of 'gym:thing' cannot be dealt into 3",
        ),
        ("[evolve]", 'plugins = ["absent-one"]\n[evolve]', "plugins: no installed package has"),
        ("[evolve]", 'plugins = ["craft"]\n[evolve]', "an environment of Chorale's own"),
        ("[evolve]", '[rollout]\nkind = "openai"\n[evolve]', "rollout.url: kind 'openai' needs it"),
        ("[evolve]", "[rollout]\nworker = 2\n[evolve]", "nearest valid key is 'workers'"),
        ("[evolve]", '[training]\ndevice = "tpu"\n[evolve]', "training.device"),
        ("[evolve]", 'dtype = "int8"\n[evolve]', "dtype"),
    ],
)
def test_what_is_wrong_is_told_with_its_key(tmp_path, before, after, says):
    text = SMALL + FOREIGN + silos("gym:thing") + setting("x", "fedse")
    assert before in text
    with pytest.raises(ExperimentFileError) as caught:
        load_experiment(write(tmp_path, text.replace(before, after)))
    assert any(says in problem for problem in caught.value.problems), caught.value.problems


def test_paths_of_a_server_are_relative_to_the_file_and_its_draws_are_another_runs(tmp_path):
    rollout = 'kind = "openai"\nurl = "http://127.0.0.1:8000"\nmodel = "base"\nadapter_dir = "kept"'
    text = SMALL + silos("craft", count=1) + setting("x", "fedse")
    served = text.replace("[evolve]", f"[rollout]\n{rollout}\n[evolve]")
    one, other = (load_experiment(write(tmp_path, t)) for t in (text, served))
    assert other.rollout.adapter_dir == str(tmp_path / "kept")
    (local,), (asked,) = (e.runs(base_dir=tmp_path, base_sha256="0" * 64) for e in (one, other))
    assert local.sha256 != asked.sha256
    moved = asked.model_copy(
        update={"rollout": asked.rollout.model_copy(update={"url": "http://127.0.0.1:1"})}
    )
    assert moved.sha256 == asked.sha256
    threads = local.model_copy(
        update={"rollout": local.rollout.model_copy(update={"workers": 4, "device": "cuda"})}
    )
    assert threads.sha256 == local.sha256
