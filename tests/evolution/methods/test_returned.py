"""What a sampler is told of a silo's tasks."""

import pytest
from structlog.testing import capture_logs

from evolution.envs import make
from evolution.envs.environment import Environment
from evolution.envs.tasks import Shard
from evolution.gateway.environment import HarnessEnvironment
from evolution.methods.evolver import Assignment
from evolution.methods.returned import pool_of
from evolution.parts.seam import MOST_START
from evolution.trajectory import Task


class Plain(Environment):
    """Takes no variants."""

    name = family = "told"
    max_steps = 3
    labels = ("first", "second")

    @property
    def instruction(self):
        return "go"

    def reset(self, task_id):
        return "", {}

    def step(self, action):
        return "", 0.0, True, False, {}

    def success(self, info):
        return True


class Told(Plain):
    """Its tasks somebody has written anew."""

    said: object = ()

    def variants(self, task_id):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def reset_variant(self, task_id, variant):
        return "", {}


def part_of(environment, shard=None):
    assigned = Assignment(environment=environment.name, shard=shard)
    return pool_of([assigned], {environment.name: environment}, distinct=False).environments[0]


def test_a_part_of_the_pool_knows_labels_variants_and_tasks_that_begin_elsewhere():
    craft = make("craft")
    part = part_of(craft, Shard(index=1, count=4))
    assert {part.label_of(task_id) for task_id in part.task_ids[:8]} == {
        "brick", "lamp", "oven", "forge"
    }  # fmt: skip
    task_id = part.task_ids[3]
    assert part.label_of(task_id) == craft.task_label(task_id)
    assert list(part.variants_of(task_id)) == list(craft.variants(task_id)) != []
    assert part.replays
    assert part.task(task_id, prefix=("get 2 stone",)) == Task(
        environment="craft", task_id=task_id, prefix=("get 2 stone",)
    )
    assert part.task(task_id, variant="after 1").variant == "after 1"


def test_some_have_no_variants_and_a_harness_is_not_replayed():
    assert part_of(Plain()).variants_of(1_008_000) == ()
    assert not HarnessEnvironment.replays
    assert part_of(make("bandit")).variants_of(1_008_000) == ()
    assert part_of(make("words")).variants_of(1_008_000) == ()


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (("shorter", "longer"), ("shorter", "longer")),
        (["shorter", "", 7, None], ("shorter",)),
        (("x" * MOST_START, "x" * (MOST_START + 1)), ("x" * MOST_START,)),
        (None, ()),
        (KeyError("a task of somebody's"), ()),
    ],
)
def test_what_an_environment_says_of_variants_is_text_that_can_be_kept(monkeypatch, said, found):
    monkeypatch.setattr(Told, "said", said)
    with capture_logs() as logs:
        assert part_of(Told()).variants_of(1_008_000) == found
    failed = said is None or isinstance(said, Exception)
    assert [line["event"] for line in logs] == ["variants_not_told"] * failed
    assert "somebody" not in str(logs)
