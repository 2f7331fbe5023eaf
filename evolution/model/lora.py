"""The LoRA adapter as named float32 arrays, and back.

W' = W + (α/r)·B·A with A ∈ R^{r×in}, B ∈ R^{out×r} (LoRA, arXiv 2106.09685, §4.1) on every linear
layer except the output head, or on those that a target names (``federation.adapter.target``),
without dropout. Names are peft's state-dict keys, for example
``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight``, so an exported adapter is an
ordinary peft adapter.

A critic's value head, where an adapter has one, is written and read beside the factors
(``evolution/model/value_head.py``).

φ₀, the first adapter, is drawn as ``federation.adapter.initial`` says, for any architecture that
transformers can build.

Covered: dense ``torch.nn.Linear`` layers. Not covered: fused expert weights, embeddings, DoRA.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from evolution.errors import AdapterMismatchError
from evolution.model.beside import TrainedBeside
from evolution.model.value_head import adapter_parameters, put_head, take_head
from federation.adapter.initial import first_factor
from federation.adapter.target import ALL_LINEAR, Target, is_named, targeted
from federation.adapter.value_head import VALUE_HEAD, first_head
from federation.errors import TargetError

__all__ = [
    "adapted_linears",
    "attach_lora",
    "first_value_head",
    "initial_adapter",
    "lora_parameters",
    "read_adapter",
    "split_name",
    "trainable_parameters",
    "without_adapter",
    "write_adapter",
]

_PREFIX = "base_model.model."
_FACTORS = {".lora_A.weight": "A", ".lora_B.weight": "B"}


def split_name(name: str) -> tuple[str, str]:
    """The module in the base model, and ``A`` or ``B``, that a peft state-dict key belongs to.

    Raises:
        AdapterMismatchError: The name is not that of a LoRA factor.
    """
    for suffix, factor in _FACTORS.items():
        if name.startswith(_PREFIX) and name.endswith(suffix):
            return name[len(_PREFIX) : -len(suffix)], factor
    raise AdapterMismatchError(f"{name!r} does not name a LoRA factor")


def adapted_linears(model: Any, target: Target = ALL_LINEAR) -> dict[str, torch.nn.Linear]:
    """The layers an adapter changes: the target's linear layers, never the output head.

    By module name, in the model's order; the model has no adapter yet.

    Raises:
        AdapterMismatchError: A name of the target means no such layer, or another module too.
    """
    head = model.get_output_embeddings()
    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    try:
        chosen = targeted(target, linears)
    except TargetError as error:
        raise AdapterMismatchError(str(error)) from error
    for module, _ in model.named_modules() if target != ALL_LINEAR else ():
        # peft goes by the names alone and would put factors there as well.
        if module not in linears and any(is_named(module, name) for name in target):
            raise AdapterMismatchError(
                f"model.target names {module!r}, which is no linear layer below the head: name "
                "layers by more of their path"
            )
    return {name: linears[name] for name in chosen}


def initial_adapter(
    base_dir: str | Path,
    rank: int,
    alpha: float,
    seed: int,
    target: Target = ALL_LINEAR,
    *,
    value_head: bool = False,
) -> dict[str, np.ndarray]:
    """φ₀, float32, as ``federation.adapter.initial`` defines it; with a value head if asked for.

    Only the base model's configuration is read. The first adapter does not depend on α, which is
    part of what identifies the run; the seed decides every entry of A.

    Raises:
        AdapterMismatchError: The model does not have the target's layers.
    """
    del alpha
    model = _shape_of(base_dir)
    adapter: dict[str, np.ndarray] = {}
    for module, linear in adapted_linears(model, target).items():
        adapter[f"{_PREFIX}{module}.lora_A.weight"] = first_factor(
            module, rank=rank, in_features=linear.in_features, seed=seed
        )
        adapter[f"{_PREFIX}{module}.lora_B.weight"] = np.zeros(
            (linear.out_features, rank), dtype=np.float32
        )
    if value_head:
        adapter |= first_head(int(model.get_output_embeddings().weight.shape[-1]))
    return adapter


def first_value_head(base_dir: str | Path) -> dict[str, np.ndarray]:
    """The value head that a critic on this base starts from, by name."""
    return first_head(int(_shape_of(base_dir).get_output_embeddings().weight.shape[-1]))


def _shape_of(base_dir: str | Path) -> Any:
    """The model without its weights, from its configuration."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(base_dir, local_files_only=True)
        )


def attach_lora(model: Any, *, rank: int, alpha: float, target: Target = ALL_LINEAR) -> PeftModel:
    """Put a trainable adapter on a base model, in place.

    Its factors hold peft's own initial values until ``write_adapter``. In bfloat16 they stand
    beside the weights (``evolution/model/beside.py``); in float32 the layers are peft's own.

    Raises:
        AdapterMismatchError: The model does not have the target's layers.
    """
    linears = adapted_linears(model, target)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=target if target == ALL_LINEAR else list(target),
        task_type=TaskType.CAUSAL_LM,
    )
    if any(one.weight.dtype is torch.bfloat16 for one in linears.values()):
        # peft documents this way to bring a layer of one's own; it has no public name there.
        config._register_custom_module({torch.nn.Linear: TrainedBeside})  # noqa: SLF001
    with warnings.catch_warnings():
        # peft 0.21 reads an attribute that transformers 5.23 has renamed; the old name still works.
        warnings.filterwarnings(
            "ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning
        )
        return get_peft_model(model, config)


def lora_parameters(model: PeftModel) -> dict[str, torch.nn.Parameter]:
    """The parameters of the model's one adapter, by state-dict key."""
    return {
        name.replace(".default.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".lora_A." in name or ".lora_B." in name
    }


def trainable_parameters(model: PeftModel) -> dict[str, torch.nn.Parameter]:
    """The same, and the weight of the model's value head if it has one."""
    return adapter_parameters(model, lora_parameters(model))


@contextlib.contextmanager
def without_adapter(model: PeftModel) -> Iterator[None]:
    """While this lasts, the model is the base alone.

    peft lets every factor have gradients when it switches the adapter on again; which of them are
    trained is put back here.
    """
    trained = {one: one.requires_grad for one in lora_parameters(model).values()}
    try:
        with model.disable_adapter():
            yield
    finally:
        for one, wanted in trained.items():
            one.requires_grad_(wanted)


@torch.no_grad()
def write_adapter(model: PeftModel, tensors: Mapping[str, np.ndarray]) -> None:
    """Set every factor of the model's one adapter, bit for bit.

    With a value head among them the model has one afterwards, and without one none.

    Raises:
        AdapterMismatchError: Names or shapes differ from the model's.
    """
    if VALUE_HEAD in tensors:
        put_head(model, tensors[VALUE_HEAD].shape[-1])
    else:
        take_head(model)
    parameters = trainable_parameters(model)
    if parameters.keys() != tensors.keys():
        odd = sorted(parameters.keys() ^ tensors.keys())
        raise AdapterMismatchError(f"{len(odd)} names differ, the first is {odd[0]!r}")
    for name, parameter in parameters.items():
        if tuple(parameter.shape) != tensors[name].shape:
            raise AdapterMismatchError(
                f"{name}: shape {tensors[name].shape}, expected {tuple(parameter.shape)}"
            )
        parameter.copy_(torch.from_numpy(tensors[name].astype(np.float32)))


def read_adapter(model: PeftModel) -> dict[str, np.ndarray]:
    """Every factor of the model's one adapter, and its value head, each a float32 array."""
    return {
        name: parameter.detach().float().cpu().numpy().copy()
        for name, parameter in trainable_parameters(model).items()
    }
