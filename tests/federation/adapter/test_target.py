"""Targets: what a document may say, which layers it means, and adapters made for another one."""

import numpy as np
import pytest

from federation.adapter.layout import Layout
from federation.adapter.shapes import ModelShape
from federation.adapter.target import ALL_LINEAR, is_named, require_target, target_of, targeted
from federation.errors import LayoutError, TargetError
from tests.kit.paths import ROOT

SMALL = ModelShape(
    hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=64, vocabulary=100, tied=True
)
SMOLLM2 = ModelShape(
    hidden=576, layers=30, heads=9, kv_heads=3, head_dim=64, mlp=1536, vocabulary=49_152, tied=True
)


def test_a_target_is_all_linear_layers_or_a_list_of_names():
    assert target_of("all-linear") == ALL_LINEAR
    assert target_of(["v_proj"]) == ("v_proj",)
    assert target_of(("q_proj", "layers.0.mlp.up_proj")) == ("q_proj", "layers.0.mlp.up_proj")
    assert len(target_of([f"a{n}" for n in range(32)])) == 32


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("v_proj", "a list of layers' names"),
        (True, "a list of layers' names"),
        ({"v_proj": 1}, "a list of layers' names"),
        ([], "names 0 layers"),
        ([f"a{n}" for n in range(33)], "names 33 layers"),
        (["v_proj", "q_proj", "v_proj"], "twice"),
        (["v_proj", 3], "'3' is no layer's name"),
        ([""], "'' is no layer's name"),
        (["0.self_attn.v_proj"], "is no layer's name"),
        ([".*"], "is no layer's name"),
        (["v_proj\n"], "is no layer's name"),
        (["a" * 65], "is no layer's name"),
    ],
)
def test_what_is_no_target_is_refused_with_what_is(value, says):
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        target_of(value)


def test_a_name_means_whole_components():
    assert is_named("model.layers.0.self_attn.v_proj", "v_proj")
    assert is_named("model.layers.10.mlp.up_proj", "layers.10.mlp.up_proj")
    assert is_named("v_proj", "v_proj")
    assert not is_named("model.layers.0.self_attn.kv_proj", "v_proj")
    # A dot is a dot, and no pattern.
    assert not is_named("model.layersX0", "layers.0")


def test_a_target_means_layers_in_the_models_order():
    every = tuple(SMALL.adapted())
    assert len(every) == 14
    assert targeted(ALL_LINEAR, every) == every
    one = "model.layers.1.mlp.down_proj"
    assert tuple(SMALL.adapted(("layers.1.mlp.down_proj", "v_proj"))) == (
        "model.layers.0.self_attn.v_proj",
        "model.layers.1.self_attn.v_proj",
        one,
    )


@pytest.mark.parametrize("name", ["w_proj", "lm_head", "embed_tokens", "self_attn", "proj"])
def test_a_name_without_a_layer_is_refused_with_those_that_there_are(name):
    for ask in (
        SMALL.adapted,
        lambda t: SMALL.lora_layout(1, t),
        lambda t: SMALL.lora_parameters(1, t),
    ):
        with pytest.raises(TargetError, match=f"names '{name}'.*down_proj.*v_proj.*all-linear"):
            ask(("v_proj", name))


def test_one_layer_type_of_a_small_pretrained_model_is_a_27th_of_all():
    """What ``docs/privacy.md`` says of the noise: its root is 5.2."""
    every, some = (SMOLLM2.lora_parameters(1, target)[1] for target in (ALL_LINEAR, ("v_proj",)))
    assert (every, some) == (155_520, 5_760)
    noise = [1.82 * dimension**0.5 / 128 for dimension in (every, some)]
    assert noise == pytest.approx([5.6, 1.08], abs=0.01)
    text = (ROOT / "docs" / "privacy.md").read_text()
    assert "155,520" in text
    assert "5,760" in text


def test_all_linear_layers_are_what_they_were():
    """The digest is of the release before there were lists: an old run's layout is its own."""
    assert SMALL.lora_layout(8).sha256.hex() == (
        "c23bcb7678a74db7d9109f7865453ffe7020ec8fd6cce50bcbd734338faddf51"
    )
    assert SMALL.lora_layout(8) == SMALL.lora_layout(
        8, tuple(n.split(".")[1] for n in SMALL.linears)
    )


def tensors(*modules):
    return {
        f"base_model.model.{module}.lora_{factor}.weight": np.zeros(shape, np.float32)
        for module in modules
        for factor, shape in (("A", (1, 4)), ("B", (4, 1)))
    }


V, Q = "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.q_proj"


def test_an_adapter_of_the_target_passes_and_one_of_another_does_not():
    both, one = (Layout.from_tensors(tensors(*modules)) for modules in ((V, Q), (V,)))
    for layout in (both, one):
        require_target(layout, ALL_LINEAR)
    require_target(both, ("v_proj", "q_proj"))
    require_target(one, ("self_attn.v_proj",))
    with pytest.raises(LayoutError, match=r"changes layer 'model.layers.0.self_attn.q_proj'.*init"):
        require_target(both, ("v_proj",))
    with pytest.raises(LayoutError, match=r"names 'q_proj', and the adapter.*only v_proj"):
        require_target(one, ("v_proj", "q_proj"))
    bare = Layout.from_tensors({"w": np.zeros(3, np.float32)})
    require_target(bare, ALL_LINEAR)
    with pytest.raises(LayoutError, match="no LoRA factor"):
        require_target(bare, ("w",))
