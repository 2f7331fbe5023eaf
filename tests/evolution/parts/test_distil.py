"""Own success as a teacher: which tries are rows, what the teacher reads, and where that moves."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from evolution.errors import PartError, RowError
from evolution.methods.evolver import EvolveSettings
from evolution.methods.taught import taught
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.train.objective import RowTensors, TokenOut
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from evolution.trajectory import Group
from tests.kit.evolution.plays import task, tried

SETTINGS = EvolveSettings(episodes=4, max_sequence_tokens=64)
OBJECTIVE = Part.own("reverse-kl")
HELP = (7, 8, 9)
"""What stands in the opening where a scaffold helped."""


def plain(*actions, solved=False):
    """A try whose words are tokens that the smallest vocabulary has."""
    one = tried(task(1), *actions, solved=solved)
    steps = tuple(
        replace(step, action_ids=tuple(token - 90 for token in step.action_ids))
        for step in one.steps
    )
    return replace(one, steps=steps)


def helped(*actions, solved=True):
    one = plain(*actions, solved=solved)
    first = replace(one.steps[0], context_ids=(*HELP, 1, 2), bare_ids=one.steps[0].context_ids)
    return replace(one, steps=(first, *one.steps[1:]))


def rows_of(*tries):
    group = Group(task=task(1), round=2, trajectories=tries)
    return Part.own("distil").make().credit([group], None, None)


def test_plain_tries_are_rows_beside_a_success_that_was_helped():
    lost, won = plain("a", "b"), plain("c", solved=True)
    rows = rows_of(lost, helped("d", "e", "f"), won, helped("g"))
    assert [row.name for row in rows] == [lost.conversation_sha256, won.conversation_sha256]
    # The teacher reads the opening of the shortest success, and then the try's own words.
    assert rows[0].taught_ids.tolist() == [*HELP, *lost.token_ids]
    assert rows[0].token_ids.tolist() == list(lost.token_ids)
    assert rows[0].weights[rows[0].mask].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "tries",
    [
        [plain("a"), plain("b", solved=True)],
        [plain("a"), helped("b", solved=False)],
        [helped("a"), helped("b")],
    ],
    ids=["nobody was helped", "help was no use", "nobody tried alone"],
)
def test_without_both_kinds_there_are_no_rows(tries):
    assert rows_of(*tries) == []


def test_a_try_that_began_otherwise_has_another_teacher():
    other = plain("a")
    first = replace(other.steps[0], context_ids=(5, 6))
    assert rows_of(replace(other, steps=(first,)), helped("b")) == []


def test_what_a_teacher_reads_ends_with_the_rows_own_words():
    row = Row.of(plain("a"))
    with pytest.raises(RowError, match="teacher"):
        replace(row, taught_ids=np.array([1, 2, 3]))


@pytest.fixture
def trainer(tiny_base):
    adapter = initial_adapter(tiny_base, 2, 4.0, 0)
    made = SftTrainer(tiny_base, rank=2, alpha=4.0, dtype="float32")
    made.reset(adapter)
    return made


def test_the_teachers_word_is_the_models_own_after_the_other_opening(trainer):
    lost, won = plain("a", "b"), helped("c")
    (row,) = taught(trainer, rows_of(lost, won), OBJECTIVE, SETTINGS)
    reads = replace(
        lost, steps=(replace(lost.steps[0], context_ids=won.steps[0].context_ids), *lost.steps[1:])
    )
    (said,) = trainer.logprobs([Row.of(reads)])
    np.testing.assert_array_equal(row.known["teacher"], said[len(HELP) :])
    assert row.taught_ids is None
    assert row.known["teacher"][row.mask].min() < 0


def test_a_teacher_that_would_read_too_much_is_left_out(trainer):
    rows = rows_of(plain("a"), plain("b" * 20), helped("c"))
    short = dataclasses.replace(SETTINGS, max_sequence_tokens=12)
    assert [len(row) for row in taught(trainer, rows, OBJECTIVE, short)] == [3]


def test_an_objective_without_a_teachers_rows_says_what_to_use(trainer):
    with pytest.raises(PartError, match="'distil'"):
        taught(trainer, [Row.of(plain("a"))], OBJECTIVE, SETTINGS)
    # Nobody else's rows are touched.
    rows = [Row.of(plain("a"))]
    assert taught(trainer, rows, Part.own("nll"), SETTINGS) == rows


def loss_of(logits, token, teacher, behaviour, **options):
    logprobs = torch.log_softmax(logits, -1)
    out = TokenOut(logprobs[token][None], logits[None], {"teacher": torch.tensor([teacher])})
    row = RowTensors(torch.tensor([True]), torch.ones(1), torch.tensor([behaviour]))
    return Part.own("reverse-kl", **options).make().terms(out, row).sum()


def test_in_expectation_it_is_the_gradient_of_the_reverse_kl():
    """Over all tokens of a small vocabulary, against torch's own divergence."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(6, generator=generator, requires_grad=True)
    teacher = torch.log_softmax(torch.randn(6, generator=generator), -1)
    policy = torch.log_softmax(logits, -1).detach()
    total = sum(
        policy[x].exp() * loss_of(logits, x, float(teacher[x]), float(policy[x])) for x in range(6)
    )
    (found,) = torch.autograd.grad(total, logits)
    divergence = torch.nn.functional.kl_div(
        teacher, torch.log_softmax(logits, -1), reduction="sum", log_target=True
    )
    (expected,) = torch.autograd.grad(divergence, logits)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_gap_and_ratio_are_bounded():
    logits = torch.zeros(4, requires_grad=True)
    at = float(torch.log(torch.tensor(0.25)))
    # log T − log π = −100 counts as −5: the loss is 5·log π.
    assert loss_of(logits, 0, at - 100, at).item() == pytest.approx(5 * at)
    # π/μ = e³ counts as 2: −2·1·log π.
    assert loss_of(logits, 0, at + 1, at - 3, most=2.0).item() == pytest.approx(-2 * at)
