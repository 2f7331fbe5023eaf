"""The small base model: a shortened build, and the one that ships."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import lab
from evolution.envs import Split
from evolution.rollout.conversation import ChatFormat
from lab.base.build import BuildProgress, Recipe, build_base, weights_sha256
from lab.base.data import SKILL, demonstrations, play_weakly, scripted
from lab.base.evaluate import solved_tasks
from lab.base.model import build_model
from lab.base.tokenizer import build_tokenizer, environment_words
from lab.cli.base import app

SHIPPED = Path(lab.__file__).parent / "base_model"
STEPS = 3


@pytest.fixture(scope="module")
def short_build(tmp_path_factory):
    out = tmp_path_factory.mktemp("base")
    seen: list[BuildProgress] = []
    record = build_base(out, seed=5, steps=STEPS, evaluation_tasks=2, progress=seen.append)
    return out, record, seen


@pytest.fixture(scope="module")
def shipped():
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(SHIPPED)


@pytest.mark.long
def test_same_seed_gives_the_same_weights_and_other_seeds_do_not(short_build, tmp_path):
    _, record, _ = short_build
    before = torch.random.get_rng_state()
    again = build_base(tmp_path / "again", seed=5, steps=STEPS, evaluation_tasks=0)
    other = build_base(tmp_path / "other", seed=6, steps=STEPS, evaluation_tasks=0)
    assert again["weights_sha256"] == record["weights_sha256"] != other["weights_sha256"]
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.long
def test_build_is_an_ordinary_directory_with_its_recipe(short_build):
    out, record, seen = short_build
    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert sum(p.numel() for p in model.parameters()) == record["parameters"] < 500_000
    assert len(tokenizer) == model.config.vocab_size == record["vocabulary"]
    assert json.loads((out / "build.json").read_text()) == record
    assert record["recipe"]["seed"] == 5
    assert set(record["held_out_success"]) == set(SKILL)
    assert [s.phase for s in seen if s.done == 1.0] == ["demonstrations", "training", "measuring"]
    losses = [s.loss for s in seen if s.loss is not None]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]
    assert not list(out.glob("*.bin"))


def test_command_writes_the_record(tmp_path):
    arguments = ["build", "--out", str(tmp_path), "--steps", "1", "--evaluation-tasks", "0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["weights_sha256"] == weights_sha256(tmp_path)


def test_longest_episodes_leave_room_in_the_position_limit():
    """The worst play, every step of it, with room for answers as long as a plan usually allows."""
    tokenizer = build_tokenizer(environment_words())
    chat = ChatFormat.from_tokenizer(tokenizer)
    limit = build_model(tokenizer, seed=0).config.max_position_embeddings
    for name in SKILL:
        environment = scripted(name)
        longest = 0
        for number, task in enumerate(environment.task_ids(Split.TRAIN)[:64]):
            rng = np.random.default_rng(number)
            played = play_weakly(environment, task, skill=0.2 * (number % 4), rng=rng)
            rendered = chat.render(played.instruction, played.observations, played.actions)
            longest = max(longest, len(rendered.token_ids))
        assert longest + 16 * environment.max_steps < limit, name
        environment.close()


def test_demonstrations_do_not_depend_on_how_many_are_made():
    chat = ChatFormat.from_tokenizer(build_tokenizer(environment_words()))
    few = demonstrations("craft", 3, seed=1, chat=chat)
    many = demonstrations("craft", 6, seed=1, chat=chat)
    assert many[:3] == few
    assert demonstrations("craft", 3, seed=2, chat=chat) != few


def test_skill_decides_how_well_a_weak_player_plays():
    craft = scripted("craft")
    tasks = craft.task_ids(Split.PRETRAIN)[:100]
    rates = [
        np.mean(
            [play_weakly(craft, t, skill=s, rng=np.random.default_rng(t)).success for t in tasks]
        )
        for s in (0.0, 0.4, 1.0)
    ]
    assert rates[0] < rates[1] < rates[2] == 1.0


def test_shipped_weights_are_the_recorded_ones_and_small():
    record = json.loads((SHIPPED / "build.json").read_text())
    weights = (SHIPPED / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == record["weights_sha256"]
    assert len(weights) <= 5_000_000


def test_shipped_tokenizer_is_today_s(shipped):
    """The environments' words may not drift away from the model that ships."""
    _, tokenizer = shipped
    assert tokenizer.get_vocab() == build_tokenizer(environment_words()).get_vocab()
    chat = [{"role": "user", "content": "goal plank ."}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def test_shipped_record_has_room_to_improve_and_something_to_filter():
    record = json.loads((SHIPPED / "build.json").read_text())
    assert set(record["held_out_success"]) == set(SKILL)
    assert record["recipe"] == asdict(Recipe()) | {"episodes": dict(Recipe().episodes)}
    assert record["skill"] == {name: list(bounds) for name, bounds in SKILL.items()}
    for measured in record["held_out_success"].values():
        assert measured["tasks"] >= 200
        assert 0.15 <= measured["temperature_1"] <= 0.45
        assert measured["temperature_1"] < measured["greedy"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name == "babyai" else name
        for name in sorted(SKILL)
    ],
)
def test_shipped_model_beats_a_random_player(shipped, name):
    model, tokenizer = shipped
    environment = scripted(name)
    tasks = environment.task_ids(Split.HELD_OUT)[5_000:5_064]
    random_player = np.mean(
        [play_weakly(environment, t, skill=0, rng=np.random.default_rng(t)).success for t in tasks]
    )
    environment.close()
    solved = solved_tasks(model, tokenizer, name, tasks, temperature=0, seed=0)
    assert np.mean(solved) > random_player + 0.05


@pytest.mark.long
def test_shipped_model_solves_some_of_every_craft_shard(shipped):
    """Filtering needs successes at every silo, at the temperature silos explore with."""
    model, tokenizer = shipped
    craft = scripted("craft")
    tasks = craft.task_ids(Split.HELD_OUT)[6_000:6_128]
    solved = solved_tasks(model, tokenizer, "craft", tasks, temperature=1.0, seed=0, batch=128)
    shards = {craft.shard_of(task, 4) for task, won in zip(tasks, solved, strict=True) if won}
    assert shards == {0, 1, 2, 3}


def test_rows_do_not_influence_each_other(shipped):
    """The same greedy verdicts come out of one large batch and of many small ones."""
    model, tokenizer = shipped
    tasks = scripted("craft").task_ids(Split.HELD_OUT)[:12]
    large = solved_tasks(model, tokenizer, "craft", tasks, temperature=0, seed=0, batch=12)
    small = solved_tasks(model, tokenizer, "craft", tasks, temperature=0, seed=0, batch=1)
    assert large == small
