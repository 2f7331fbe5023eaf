"""Which linear layers of a base model carry an adapter: a plan's ``[model] target``.

``all-linear`` is every linear layer but the output head. A list names layers as peft's
``target_modules`` does: a name means each layer that is called that, and each whose name ends in a
dot and that. ``v_proj`` is the value projection of every block, ``layers.0.self_attn.v_proj`` that
of the first.

Invariants:

1. Each name of a list means at least one layer of the model; one that means none is refused with
   the names that there are.
2. An adapter of a list's target has every one of its layers in those that the list names, and at
   least one for each name (``require_target``). Whether it has all of them says the model alone.

Covered: the text of a target, the layers that it means, adapters made for another. Not covered:
layers that are no linear ones, patterns, a rank for each layer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from federation.adapter.layout import Layout
from federation.adapter.value_head import VALUE_HEAD
from federation.errors import LayoutError, TargetError

__all__ = [
    "ALL_LINEAR",
    "Target",
    "TargetKey",
    "is_named",
    "require_named",
    "require_target",
    "target_of",
    "targeted",
]

ALL_LINEAR: Final = "all-linear"
MAX_NAMES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}")
_PREFIX: Final = "base_model.model."
_MAX_SHOWN: Final = 16

Target = Literal["all-linear"] | tuple[str, ...]


def target_of(value: Any) -> Target:
    """A target as a document says it.

    Raises:
        ValueError: It is none, with what one is.
    """
    if isinstance(value, str) and value == ALL_LINEAR:
        return ALL_LINEAR
    if not isinstance(value, list | tuple):
        raise ValueError(  # noqa: TRY004  # pydantic makes a problem of a ValueError alone
            f'not {ALL_LINEAR!r} or a list of layers\' names such as ["q_proj", "v_proj"]'
        )
    if not 1 <= len(value) <= MAX_NAMES:
        raise ValueError(f"names {len(value)} layers: name 1 to {MAX_NAMES}, or {ALL_LINEAR!r}")
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{str(name)[:64]!r} is no layer's name: a letter, then at most 63 letters, "
                "digits, _ or ."
            )
    if len(set(value)) != len(value):
        raise ValueError("names a layer twice: leave one out")
    return tuple(value)


TargetKey = Annotated[Target, BeforeValidator(target_of)]
"""The key of a strict table."""


def is_named(module: str, name: str) -> bool:
    """Whether a name of a list means a module."""
    return module == name or module.endswith(f".{name}")


def targeted(target: Target, layers: Iterable[str]) -> tuple[str, ...]:
    """Those of a model's linear layers, by module name, that carry an adapter; in their order.

    Raises:
        TargetError: A name means none of them.
    """
    layers = tuple(layers)
    if target == ALL_LINEAR:
        return layers
    for name in target:
        if not any(is_named(layer, name) for layer in layers):
            raise TargetError(
                f"model.target names {name!r}, and no linear layer of the base model below its "
                f"head has that name: name some of {_last_parts(layers)}, or {ALL_LINEAR!r}"
            )
    return tuple(layer for layer in layers if any(is_named(layer, name) for name in target))


def require_target(layout: Layout, target: Target) -> None:
    """Refuse an adapter that was made for another target; ``all-linear`` is any.

    Raises:
        LayoutError: A layer is not of the target, or a name of it means no layer.
    """
    if target != ALL_LINEAR:
        factors = layout.subset(lambda spec: spec.name != VALUE_HEAD)
        require_named([pair.prefix.removeprefix(_PREFIX) for pair in factors.pairs()], target)


def require_named(modules: Collection[str], target: tuple[str, ...]) -> None:
    """Refuse adapted layers, by module name, that a list does not name, and names without a layer.

    Raises:
        LayoutError: One of them.
    """
    advice = (
        "begin with an adapter of the plan's own target: chorale run start makes one if none is "
        "given, chorale-lab adapter init with --target"
    )
    for module in modules:
        if not any(is_named(module, name) for name in target):
            raise LayoutError(
                f"the adapter changes layer {module[:80]!r}, which model.target does not name: "
                f"{advice}"
            )
    for name in target:
        if not any(is_named(module, name) for module in modules):
            raise LayoutError(
                f"model.target names {name!r}, and the adapter changes no such layer, only "
                f"{_last_parts(modules)}: {advice}"
            )


def _last_parts(modules: Iterable[str]) -> str:
    """What layers are called by their last components."""
    names = sorted({module.rpartition(".")[2][:64] for module in modules})
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more
