"""The trainer's arithmetic: micro-batches, memory options, FedProx, SCAFFOLD, kept logits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evolution.errors import EvolverSetupError
from evolution.model.causal_lm import load_base
from evolution.model.lora import initial_adapter, lora_parameters
from evolution.train.loop import checkpointed
from evolution.train.loss import as_batch, keeps_agent_logits, positions_before, row_sums
from evolution.train.rows import Row
from evolution.train.sft import (
    RowTerms,
    SftTrainer,
    adapted_base,
    autocast,
    resolve_device,
    saves_memory,
)
from evolution.train.trainer import TrainerSpec, share_of_step
from evolution.train.trainers import make_trainer
from tests.kit.evolution.sft import ALPHA, EPISODES, NLL, PLAN, RANK, ROUNDING, ROWS, apart


@pytest.fixture(scope="module")
def adapter(tiny_base) -> dict[str, np.ndarray]:
    """Both factors non-zero, so that both have a gradient from the start."""
    rng = np.random.default_rng(1)
    first = initial_adapter(tiny_base, RANK, ALPHA, 0)
    return {k: (v + rng.normal(0, 0.02, v.shape)).astype("f4") for k, v in first.items()}


def trained(
    base, adapter, *, rows=ROWS, spec=None, names=None, anchor=None, correction=None, **changes
):
    trainer = SftTrainer(base, rank=RANK, alpha=ALPHA, dtype="float32", spec=spec or TrainerSpec())
    trainer.reset(adapter)
    names = frozenset(adapter) if names is None else names
    report = trainer.train(
        rows,
        NLL,
        replace(PLAN, **changes),
        trainable=names,
        anchor=anchor,
        correction=correction,
    )
    return trainer.adapter(), report


def norm(tensors) -> float:
    return float(np.sqrt(sum(np.square(t, dtype=np.float64).sum() for t in tensors.values())))


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 64},
        {"gradient_checkpointing": True},
        {"micro_batch_tokens": 64, "gradient_checkpointing": True},
    ],
    ids=str,
)
def test_memory_options_change_rounding_alone(tiny_base, adapter, options):
    whole, report = trained(tiny_base, adapter)
    divided, other = trained(tiny_base, adapter, spec=TrainerSpec(**options))
    assert apart(whole, adapter) > 1e-3
    assert apart(whole, divided) < ROUNDING
    assert (report.optimiser_steps, report.agent_tokens) == (
        other.optimiser_steps,
        other.agent_tokens,
    )
    assert abs(report.last_loss - other.last_loss) < ROUNDING


@pytest.mark.parametrize("tokens", [0, 24])
def test_one_step_has_the_token_weighted_mean_gradient(tiny_base, adapter, tokens):
    """The gradient itself, as the mean that a correction of zero reports after one step."""
    model = adapted_base(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32")
    parameters = lora_parameters(model)
    for name, parameter in parameters.items():
        parameter.data = torch.from_numpy(adapter[name].copy())
        parameter.requires_grad = True
    total, count = torch.zeros(()), 0
    for trajectory in EPISODES:
        ids = torch.tensor([trajectory.token_ids])
        logits = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1)
        own = torch.tensor(trajectory.agent_mask)[1:]
        total = total - logits.gather(-1, ids[0, 1:, None])[:, 0][own].sum()
        count += int(own.sum())
    (total / count).backward()
    expected = {name: p.grad.numpy() for name, p in parameters.items()}
    zeros = {name: np.zeros_like(value) for name, value in adapter.items()}
    _, report = trained(
        tiny_base,
        adapter,
        spec=TrainerSpec(micro_batch_tokens=tokens),
        epochs=1,
        batch_size=len(EPISODES),
        grad_clip_l2=1e9,
        correction=zeros,
    )
    assert report.optimiser_steps == 1
    assert report.agent_tokens == count
    assert abs(report.first_loss - float(total.detach()) / count) < 1e-5
    assert apart(report.mean_gradient, expected) < 1e-6 * max(1.0, norm(expected))
    assert norm(expected) > 0.1


def test_the_proximal_term_pulls_to_where_training_began_or_to_an_anchor(tiny_base, adapter):
    free, _ = trained(tiny_base, adapter, epochs=6)
    held, _ = trained(tiny_base, adapter, epochs=6, proximal_mu=100.0)
    assert apart(held, adapter) < 0.5 * apart(free, adapter)
    named, _ = trained(tiny_base, adapter, epochs=6, proximal_mu=100.0, anchor=adapter)
    assert apart(named, held) == 0.0
    elsewhere = {name: value + np.float32(0.01) for name, value in adapter.items()}
    pulled, _ = trained(tiny_base, adapter, epochs=6, proximal_mu=100.0, anchor=elsewhere)
    assert apart(pulled, elsewhere) < apart(held, elsewhere)


def test_the_cosine_is_torchs_own():
    steps = 6
    torch_step = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PLAN.learning_rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(torch_step, T_max=steps)
    for done in range(steps):
        share = share_of_step("cosine", done=done, steps=steps)
        assert share * PLAN.learning_rate == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        assert share_of_step("constant", done=done, steps=steps) == 1.0
        torch_step.step()
        scheduler.step()


def test_a_falling_step_moves_less_and_begins_like_a_constant_one(tiny_base, adapter):
    one = {"epochs": 1, "batch_size": len(EPISODES)}
    constant, _ = trained(tiny_base, adapter, **one)
    falling, _ = trained(tiny_base, adapter, **one, schedule="cosine")
    assert apart(constant, falling) == 0.0
    constant, _ = trained(tiny_base, adapter, epochs=6)
    falling, _ = trained(tiny_base, adapter, epochs=6, schedule="cosine")
    assert 0.2 * apart(constant, adapter) < apart(falling, adapter) < 0.9 * apart(constant, adapter)


def test_the_proximal_gradient_is_mu_times_the_distance(tiny_base, adapter):
    """FedProx's equation 2, read off the mean gradient of one step."""
    zeros = {name: np.zeros_like(value) for name, value in adapter.items()}
    moved = {name: value - np.float32(0.5) for name, value in adapter.items()}
    one = {"epochs": 1, "batch_size": len(EPISODES), "grad_clip_l2": 1e9, "correction": zeros}
    _, plain = trained(tiny_base, adapter, **one)
    _, pulled = trained(tiny_base, adapter, **one, proximal_mu=2.0, anchor=moved)
    for name, gradient in pulled.mean_gradient.items():
        assert np.abs(gradient - plain.mean_gradient[name] - 1.0).max() < 1e-5


def test_a_correction_changes_the_path_and_not_the_gradient_that_is_reported(tiny_base, adapter):
    rng = np.random.default_rng(2)
    shift = {k: rng.normal(0, 0.05, v.shape).astype("f4") for k, v in adapter.items()}
    zeros = {k: np.zeros_like(v) for k, v in adapter.items()}
    one = {"epochs": 1, "batch_size": len(EPISODES)}
    plain, none = trained(tiny_base, adapter, **one)
    same, unshifted = trained(tiny_base, adapter, **one, correction=zeros)
    corrected, shifted = trained(tiny_base, adapter, **one, correction=shift)
    assert none.mean_gradient is None
    assert apart(plain, same) == 0.0
    assert apart(unshifted.mean_gradient, shifted.mean_gradient) == 0.0
    assert apart(plain, corrected) > 1e-3
    # AdamW's first step goes against the sign of what it was given.
    for name in adapter:
        given = shifted.mean_gradient[name] + shift[name]
        clear = np.abs(given) > 1e-3
        assert (np.sign(corrected[name] - adapter[name])[clear] == -np.sign(given)[clear]).all()


def test_what_is_reported_is_clipped_and_the_correction_is_not(tiny_base, adapter):
    shift = {k: np.full_like(v, 3.0) for k, v in adapter.items()}
    _, report = trained(tiny_base, adapter, grad_clip_l2=0.01, correction=shift)
    assert 0 < norm(report.mean_gradient) <= 0.0101


def test_only_the_trainable_factors_are_reported_and_all_of_them_are_needed(tiny_base, adapter):
    only_b = frozenset(name for name in adapter if "lora_B" in name)
    after, report = trained(tiny_base, adapter, names=only_b, correction=adapter)
    assert report.mean_gradient.keys() == only_b
    assert all(after[k].tobytes() == adapter[k].tobytes() for k in adapter if k not in only_b)
    for name in ("correction", "anchor"):
        with pytest.raises(ValueError, match="missing"):
            trained(
                tiny_base, adapter, proximal_mu=1.0, **{name: {min(adapter): adapter[min(adapter)]}}
            )


def test_with_nothing_to_imitate_the_gradient_is_zero(tiny_base, adapter):
    after, report = trained(tiny_base, adapter, rows=[], correction=adapter)
    assert report.optimiser_steps == 0
    assert norm(report.mean_gradient) == 0.0
    assert apart(after, adapter) == 0.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_base_of_any_type_trains_factors_of_float32(tiny_base, adapter, dtype):
    trainer = SftTrainer(tiny_base, rank=RANK, alpha=ALPHA, dtype=dtype)
    trainer.reset(adapter)
    report = trainer.train(ROWS, NLL, replace(PLAN, epochs=8), trainable=frozenset(adapter))
    assert report.last_loss < 0.95 * report.first_loss
    model = trainer._model
    assert {p.dtype for p in lora_parameters(model).values()} == {torch.float32}
    frozen = {p.dtype for name, p in model.named_parameters() if "lora_" not in name}
    assert frozen == {getattr(torch, dtype)}


def test_kept_logits_are_those_before_agent_tokens_and_the_loss_is_the_same(tiny_base):
    model = load_base(tiny_base)
    assert keeps_agent_logits(model, "cpu")
    widths = []
    model.lm_head.register_forward_hook(lambda _m, _i, out: widths.append(out.shape[:-1].numel()))
    batch, loss = as_batch(ROWS[:6]), RowTerms(NLL)
    with torch.no_grad():
        full = row_sums(model, batch, NLL.make(), keep=False)
        kept = row_sums(model, batch, NLL.make(), keep=True)
        expected, counts = loss.sums(model, *loss.collate(ROWS[:6]))
    assert widths == [batch.mask.numel(), int(counts.sum()), batch.mask.numel()]
    assert torch.equal(full, expected)
    assert torch.allclose(full, kept, atol=1e-4)


@pytest.mark.parametrize("keep", [False, True])
def test_over_a_large_vocabulary_the_gradient_is_as_exact_as_float32_allows(keep):
    """A vocabulary that is not side by side in memory would be summed ten times worse."""
    generator = torch.Generator().manual_seed(0)
    batch = as_batch([replace(ROWS[0], token_ids=ROWS[0].token_ids % 7)])
    asked = positions_before(batch.mask)
    logits = 8 * torch.randn(*batch.ids.shape, 49152, generator=generator, dtype=torch.float64)

    leaf = logits.float().requires_grad_()

    def model(*, input_ids, use_cache, logits_to_keep=None):
        return SimpleNamespace(logits=leaf if logits_to_keep is None else leaf[logits_to_keep])

    row_sums(model, batch, NLL.make(), keep=keep).sum().backward()
    exact = logits.softmax(-1)
    exact.scatter_add_(2, batch.ids.roll(-1, 1)[..., None], -torch.ones_like(exact[..., :1]))
    exact[~asked] = 0
    assert float((leaf.grad - exact).norm() / exact.norm()) < 1e-6


def test_a_model_that_ignores_or_refuses_the_question_is_found_out(tiny_base):
    model = load_base(tiny_base)

    def ignores(*, logits_to_keep=None, **kwargs):
        return model(**kwargs)

    def refuses(*, input_ids, use_cache):
        return model(input_ids=input_ids, use_cache=use_cache)

    def answers_otherwise(*, logits_to_keep=None, **kwargs):
        moved = 0 if logits_to_keep is None else logits_to_keep.roll(1, dims=1)
        return model(logits_to_keep=moved, **kwargs)

    def one_dimension_only(*, logits_to_keep=None, **kwargs):
        """Indexing the sequence with the mask, as many a model of its own does."""
        output = model(**kwargs)
        if logits_to_keep is not None:
            output.logits = output.logits[:, logits_to_keep, :]
        return output

    for other in (ignores, refuses, answers_otherwise, one_dimension_only):
        assert not keeps_agent_logits(other, "cpu"), other.__name__


def test_padding_takes_the_longest_row():
    def of(*ids, mask):
        weights = np.array(ids, dtype=np.float32) / 2
        return Row(token_ids=np.array(ids), mask=np.array(mask), weights=weights, logprobs=-weights)

    batch = as_batch([of(5, mask=[True]), of(6, 7, 8, mask=[False, True, False])])
    assert batch.ids.tolist() == [[5, 0, 0], [6, 7, 8]]
    assert batch.mask.tolist() == [[True, False, False], [False, True, False]]
    assert batch.weights.tolist() == [[2.5, 0, 0], [3, 3.5, 4]]
    assert batch.logprobs.tolist() == [[-2.5, 0, 0], [-3, -3.5, -4]]


def test_checkpointing_recomputes_each_layer_and_leaves_no_trace(tiny_base, adapter):
    model = adapted_base(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32")
    lora_parameters(model)[min(adapter)].requires_grad = True
    calls = []
    # Recomputing stops at the last tensor that is needed, which is inside the MLP.
    inner = model.get_base_model().model.layers[1].self_attn
    inner.register_forward_hook(lambda *_: calls.append(1))
    batch = as_batch(ROWS[:2])
    for on, expected in ((True, 2), (False, 1)):
        calls.clear()
        with checkpointed(model, on=on):
            row_sums(model, batch, NLL.make(), keep=False).sum().backward()
        assert len(calls) == expected
    assert all("forward" not in vars(m) for m in model.modules())
    with (
        pytest.raises(EvolverSetupError, match="gradient_checkpointing"),
        checkpointed(torch.nn.Linear(2, 2), on=True),
    ):
        pass


def test_record_level_gradients_do_not_know_of_memory_options(tiny_base, adapter):
    """They are computed after training with every option, and are those of a plain trainer."""
    names = sorted(adapter)
    options = TrainerSpec(micro_batch_tokens=16, gradient_checkpointing=True)
    found = []
    for spec in (TrainerSpec(), options):
        trainer = SftTrainer(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32", spec=spec)
        trainer.reset(adapter)
        trainer.train(ROWS[:4], NLL, PLAN, trainable=frozenset(adapter))
        trainer.reset(adapter)
        backend = trainer.gradients(names, NLL, backend="loop")
        found.append(np.stack(list(backend.unit_gradients([[row] for row in ROWS[:3]]))))
    assert found[0].tobytes() == found[1].tobytes()


def test_record_level_gradients_leave_a_gpu_alone_or_refuse_it(tiny_base, adapter):
    """No GPU here: the trainer is told that its model, which is on the CPU, is on one."""
    trainer = SftTrainer(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32")
    trainer.reset(adapter)
    trainer._device = torch.device("cuda")
    assert trainer.gradients(sorted(adapter), NLL, backend="loop").dimension > 0
    assert trainer._device.type == "cpu"
    trainer._device, trainer._spec = torch.device("cuda"), TrainerSpec(device="cuda")
    with pytest.raises(EvolverSetupError, match="cpu or auto"):
        trainer.gradients(sorted(adapter), NLL, backend="loop")
    with pytest.raises(EvolverSetupError, match="cpu or auto"):
        trainer.descend(sorted(adapter), lambda: np.zeros(1), steps=1, learning_rate=0.1)


def test_only_a_bfloat16_base_on_a_gpu_is_cast(tiny_base, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "autocast", lambda device, dtype: asked.append((device, dtype)))
    for dtype in ("float32", "bfloat16"):
        model = adapted_base(tiny_base, rank=RANK, alpha=ALPHA, dtype=dtype)
        for device in ("cpu", "cuda"):
            autocast(model, torch.device(device))
    assert asked == [("cuda", torch.bfloat16)]


@pytest.mark.parametrize("asked", [{"micro_batch_tokens": 8}, {"gradient_checkpointing": True}])
def test_logits_without_a_loss_are_left_out_where_memory_is_asked_for(asked):
    assert not saves_memory(TrainerSpec(), torch.device("cpu"))
    assert saves_memory(TrainerSpec(), torch.device("cuda"))
    assert saves_memory(TrainerSpec(**asked), torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_and_auto_does_without(tiny_base, tmp_path):
    assert resolve_device("auto").type == "cpu"
    for processes in (1, 2):
        spec = TrainerSpec(device="cuda", processes=processes)
        with pytest.raises(EvolverSetupError, match="GPU"):
            make_trainer(
                tiny_base,
                rank=RANK,
                alpha=ALPHA,
                dtype="float32",
                target="all-linear",
                state_dir=tmp_path,
                spec=spec,
            )
