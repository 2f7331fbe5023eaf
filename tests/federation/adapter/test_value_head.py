"""A value head beside an adapter's factors: where it is made, counted, refused and left out."""

import json
import warnings

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.numpy import load_file

from evolution.model import lora
from evolution.model.causal_lm import load_base
from federation.adapter.export import write_peft_adapter
from federation.adapter.initial import initial_adapter
from federation.adapter.layout import Layout
from federation.adapter.shapes import shape_from_config
from federation.adapter.target import require_target
from federation.adapter.value_head import (
    VALUE_HEAD,
    head_of,
    require_head,
    with_head,
    without_head,
)
from federation.aggregate.registry import AGGREGATORS, make_aggregator
from federation.errors import LayoutError
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
SHAPE = shape_from_config((BASE / "config.json").read_bytes())


@pytest.fixture(scope="module")
def adapter():
    made = initial_adapter(SHAPE, rank=2, seed=1, target=("v_proj",), value_head=True)
    rng = np.random.default_rng(1)
    return {k: (v + rng.normal(0, 0.1, v.shape)).astype("f4") for k, v in made.items()}


def test_the_first_adapter_of_every_party_is_the_same_with_a_head_too():
    ours = initial_adapter(SHAPE, rank=2, seed=3, value_head=True)
    silos = lora.initial_adapter(BASE, 2, 4.0, 3, value_head=True)
    assert ours.keys() == silos.keys()
    assert all(ours[name].tobytes() == silos[name].tobytes() for name in ours)
    assert not ours[VALUE_HEAD].any()
    plain = initial_adapter(SHAPE, rank=2, seed=3)
    assert without_head(ours).keys() == plain.keys()
    assert Layout.from_tensors(ours) == SHAPE.lora_layout(2, value_head=True)


def test_a_head_is_one_more_tensor_of_the_layout_and_its_digest():
    plain = SHAPE.lora_layout(2)
    found = SHAPE.lora_layout(2, value_head=True)
    assert found == with_head(plain, SHAPE.hidden)
    assert found.dimension == plain.dimension + SHAPE.hidden
    assert found.sha256 != plain.sha256
    # Last by name, so that no factor's place in the vector moves.
    assert found.specs[:-1] == plain.specs
    assert found.specs[-1].shape == (1, SHAPE.hidden)


def test_a_target_is_of_the_factors(adapter):
    layout = Layout.from_tensors(adapter)
    require_target(layout, ("v_proj",))
    with pytest.raises(LayoutError, match="does not name"):
        require_target(layout, ("q_proj",))


@pytest.mark.parametrize("method", AGGREGATORS)
@pytest.mark.parametrize("gauge", [False, True])
def test_only_a_method_that_takes_any_tensors_takes_a_head(adapter, method, gauge):
    layout = Layout.from_tensors(adapter)
    if method == "fedavg" and not gauge:
        made = make_aggregator(method, layout, server_step=1.0, gauge=False)
        assert made.shared_layout(1) == layout
        return
    with pytest.raises((LayoutError, ValueError)):
        make_aggregator(method, layout, server_step=1.0, gauge=gauge)


def test_an_adapter_has_a_head_exactly_where_its_plan_shares_one(adapter):
    require_head(adapter, shared=True)
    require_head(without_head(adapter), shared=False)
    with pytest.raises(LayoutError, match=r"has no 'value_head\.weight'.*--value-head"):
        require_head(without_head(adapter), shared=True)
    with pytest.raises(LayoutError, match="an exported adapter, which leaves the head out"):
        require_head(adapter, shared=False)


def test_an_export_leaves_the_head_out_of_what_peft_reads_and_keeps_it_beside(adapter, tmp_path):
    arguments = {"base": str(BASE), "rank": 2, "alpha": 4.0, "target": ("v_proj",)}
    out = write_peft_adapter(adapter, tmp_path / "out", **arguments, provenance={})
    assert load_file(out / "adapter_model.safetensors").keys() == without_head(adapter).keys()
    kept = load_file(out / "value_head.safetensors")
    assert kept.keys() == head_of(adapter).keys()
    assert kept[VALUE_HEAD].tobytes() == adapter[VALUE_HEAD].tobytes()
    assert json.loads((out / "adapter_config.json").read_text())["target_modules"] == ["v_proj"]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        model = PeftModel.from_pretrained(load_base(BASE), out).eval()
    loaded = {k: v.numpy() for k, v in lora.lora_parameters(model).items()}
    assert all(loaded[n].tobytes() == adapter[n].tobytes() for n in without_head(adapter))
    # An export of another run into the same directory has no head of this one.
    write_peft_adapter(without_head(adapter), out, **arguments, provenance={})
    assert not (out / "value_head.safetensors").exists()
