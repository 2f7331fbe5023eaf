"""Shapes of base models that plans name: what an adapter on them holds, what they weigh.

Each is written from the model's public `config.json` on the Hugging Face Hub; the counts of
parameters that follow are those the publishers state. A model is known by its id, with or without
`-Instruct`, never by a guess from a directory's name. Of another model of these architectures the
shape is read from its own `config.json` (`shape_from_config`); what does not say its shape in full
is refused, never completed by a default of some version of some library.

Covered: dense decoders of the Llama, Mistral and Qwen families, LoRA on all linear layers but the
head or on those that a target names. Not covered: mixtures of experts; quantised weights; models
of several modalities.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from federation.adapter.layout import Layout, TensorSpec
from federation.adapter.target import ALL_LINEAR, Target, targeted
from federation.adapter.value_head import with_head
from federation.errors import ModelShapeError

__all__ = ["MAX_CONFIG_BYTES", "PRESETS", "ModelShape", "shape_from_config", "shape_of"]

MAX_CONFIG_BYTES: Final = 1 << 20
_MAX_LAYERS: Final = 1 << 10
_MAX_WIDTH: Final = 1 << 20
_MAX_VOCABULARY: Final = 1 << 24
_MODEL_TYPES: Final = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Dense decoders with the seven linear layers of `ModelShape.linears` in each block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A dense decoder with grouped-query attention and a gated MLP."""

    hidden: int
    """h, width of the residual stream."""
    layers: int
    """L."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads."""
    head_dim: int
    """Width of a head."""
    mlp: int
    """m, width inside the MLP."""
    vocabulary: int
    """V."""
    tied: bool
    """The head is the embedding."""
    qkv_bias: bool = False
    """Query, key and value have biases (Qwen2.5)."""
    qk_norm: bool = False
    """Query and key are normalised for each head (Qwen3)."""

    @property
    def linears(self) -> Mapping[str, tuple[int, int]]:
        """(out, in) of each linear layer of one block, by peft's name below the block."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "self_attn.q_proj": (query, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, query),
            "mlp.gate_proj": (self.mlp, self.hidden),
            "mlp.up_proj": (self.mlp, self.hidden),
            "mlp.down_proj": (self.hidden, self.mlp),
        }

    @property
    def block_parameters(self) -> int:
        """Of one block."""
        weights = sum(out * width for out, width in self.linears.values())
        biases = (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return weights + biases + norms

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * self.block_parameters + self.hidden

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values that one token adds to a cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def adapted(self, target: Target = ALL_LINEAR) -> Mapping[str, tuple[int, int]]:
        """(out, in) of each layer of the whole model that carries an adapter, by module name.

        Raises:
            TargetError: The target names a layer that there is not.
        """
        linears = {
            f"model.layers.{layer}.{name}": shape
            for layer in range(self.layers)
            for name, shape in self.linears.items()
        }
        return {module: linears[module] for module in targeted(target, linears)}

    def lora_parameters(self, rank: int, target: Target = ALL_LINEAR) -> tuple[int, int]:
        """Entries of all A (r x in) and of all B (out x r).

        Raises:
            TargetError: The target names a layer that there is not.
        """
        shapes = self.adapted(target).values()
        return rank * sum(width for _, width in shapes), rank * sum(out for out, _ in shapes)

    def lora_layout(
        self, rank: int, target: Target = ALL_LINEAR, *, value_head: bool = False
    ) -> Layout:
        """The adapter's tensors, as an exported one names them, and a value head if asked for.

        Raises:
            TargetError: The target names a layer that there is not.
        """
        specs = []
        for name, (out, width) in self.adapted(target).items():
            module = f"base_model.model.{name}"
            specs.append(TensorSpec(name=f"{module}.lora_A.weight", shape=(rank, width)))
            specs.append(TensorSpec(name=f"{module}.lora_B.weight", shape=(out, rank)))
        layout = Layout(tuple(specs))
        return with_head(layout, self.hidden) if value_head else layout


_QWEN_VOCABULARY: Final = 151_936
_QWEN25_HALF: Final = ModelShape(
    hidden=896, layers=24, heads=14, kv_heads=2, head_dim=64, mlp=4864,
    vocabulary=_QWEN_VOCABULARY, tied=True, qkv_bias=True,
)  # fmt: skip
_QWEN25_1_5: Final = ModelShape(
    hidden=1536, layers=28, heads=12, kv_heads=2, head_dim=128, mlp=8960,
    vocabulary=_QWEN_VOCABULARY, tied=True, qkv_bias=True,
)  # fmt: skip
_QWEN25_3: Final = ModelShape(
    hidden=2048, layers=36, heads=16, kv_heads=2, head_dim=128, mlp=11008,
    vocabulary=_QWEN_VOCABULARY, tied=True, qkv_bias=True,
)  # fmt: skip
_QWEN25_7: Final = ModelShape(
    hidden=3584, layers=28, heads=28, kv_heads=4, head_dim=128, mlp=18944, vocabulary=152_064,
    tied=False, qkv_bias=True,
)  # fmt: skip
_LLAMA32_3: Final = ModelShape(
    hidden=3072, layers=28, heads=24, kv_heads=8, head_dim=128, mlp=8192, vocabulary=128_256,
    tied=True,
)  # fmt: skip
_QWEN3_1_7: Final = ModelShape(
    hidden=2048, layers=28, heads=16, kv_heads=8, head_dim=128, mlp=6144,
    vocabulary=_QWEN_VOCABULARY, tied=True, qk_norm=True,
)  # fmt: skip
_QWEN3_8: Final = ModelShape(
    hidden=4096, layers=36, heads=32, kv_heads=8, head_dim=128, mlp=12288,
    vocabulary=_QWEN_VOCABULARY, tied=False, qk_norm=True,
)  # fmt: skip

PRESETS: Final[Mapping[str, ModelShape]] = MappingProxyType(
    {
        "Qwen/Qwen2.5-0.5B": _QWEN25_HALF,
        "Qwen/Qwen2.5-1.5B": _QWEN25_1_5,
        "Qwen/Qwen2.5-3B": _QWEN25_3,
        "Qwen/Qwen2.5-7B": _QWEN25_7,
        "meta-llama/Llama-3.2-3B": _LLAMA32_3,
        # Qwen3's plain names are the instruction-tuned models; the others end in -Base.
        "Qwen/Qwen3-1.7B": _QWEN3_1_7,
        "Qwen/Qwen3-8B": _QWEN3_8,
    }
)
"""By model id, without its variant."""
_VARIANTS: Final = ("-Instruct", "-Base")


def shape_of(base: str) -> ModelShape | None:
    """The shape of a plan's base model, or None if it is not known."""
    for variant in _VARIANTS:
        base = base.removesuffix(variant)
    return PRESETS.get(base)


def shape_from_config(content: bytes) -> ModelShape:
    """The shape that a model's own `config.json` states.

    Raises:
        ModelShapeError: If it is malformed, or of an architecture not known here.
    """
    if len(content) > MAX_CONFIG_BYTES:
        raise ModelShapeError(f"config.json has more than {MAX_CONFIG_BYTES} bytes")
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelShapeError("config.json is not JSON") from error
    if not isinstance(config, dict):
        raise ModelShapeError("config.json is not a JSON object")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _MODEL_TYPES:
        raise ModelShapeError(
            f"config.json is of model_type {str(kind)[:64]!r}, whose adapters are not known here; "
            f"known are {', '.join(sorted(_MODEL_TYPES))}"
        )
    if config.get("quantization_config") is not None:
        raise ModelShapeError("config.json is of quantised weights, which are not covered")
    heads = _size(config, "num_attention_heads", _MAX_WIDTH)
    hidden = _size(config, "hidden_size", _MAX_WIDTH)
    # The first Llamas, which have as many of both, do not name it.
    whole = kind == "llama" and config.get("num_key_value_heads") is None
    if config.get("head_dim") is not None or kind == "qwen3":
        head_dim = _size(config, "head_dim", _MAX_WIDTH)
    elif hidden % heads:
        raise ModelShapeError(f"config.json: {hidden} is not a multiple of {heads} heads")
    else:
        head_dim = hidden // heads
    return ModelShape(
        hidden=hidden,
        layers=_size(config, "num_hidden_layers", _MAX_LAYERS),
        heads=heads,
        kv_heads=heads if whole else _size(config, "num_key_value_heads", heads),
        head_dim=head_dim,
        mlp=_size(config, "intermediate_size", _MAX_WIDTH),
        vocabulary=_size(config, "vocab_size", _MAX_VOCABULARY),
        tied=config.get("tie_word_embeddings") is True,
        qkv_bias=kind == "qwen2" or config.get("attention_bias") is True,
        qk_norm=kind == "qwen3",
    )


def _size(config: Mapping[str, Any], key: str, most: int) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ModelShapeError(f"config.json: {key} is not a whole number from 1 to {most}")
    return value
