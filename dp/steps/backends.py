"""The ways to compute gradients of single units, by the name that a silo's configuration uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dp.steps.fixed import FixedBackend
from dp.steps.grads import FunctorchBackend, GradientBackend, HooksBackend, LoopBackend

__all__ = ["BACKENDS"]

BACKENDS: Final[Mapping[str, type[GradientBackend[Any]]]] = {
    "fixed": FixedBackend,
    "loop": LoopBackend,
    "hooks": HooksBackend,
    "functorch": FunctorchBackend,
}
