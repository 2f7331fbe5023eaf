"""The self-evolution methods by name. No torch until a method that needs it is made.

A literal table: a plan names a method, never code.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType

from evolution.errors import UnknownEvolverError
from evolution.methods.evolver import DP_MODES, Evolver, EvolverSetup

__all__ = ["EVOLVERS", "dp_compat_of", "make_evolver"]

EVOLVERS: MappingProxyType[str, str] = MappingProxyType(
    {
        "constant": "evolution.methods.constant:ConstantEvolver",
        "fed-se": "evolution.methods.fed_se:FedSeEvolver",
    }
)

# Beside the classes, because reading theirs would import torch; a test keeps the two equal.
_DP_COMPAT: MappingProxyType[str, frozenset[str]] = MappingProxyType(
    {"constant": DP_MODES, "fed-se": DP_MODES}
)


def dp_compat_of(method: str) -> frozenset[str]:
    """The members of ``DP_MODES`` a method may run under, without importing it.

    Raises:
        UnknownEvolverError: The name is not registered.
    """
    if method not in _DP_COMPAT:
        raise UnknownEvolverError(f"no evolver {method!r}; known: {', '.join(EVOLVERS)}")
    return _DP_COMPAT[method]


def make_evolver(name: str, setup: EvolverSetup) -> Evolver:
    """Make a method of ``EVOLVERS``.

    Raises:
        UnknownEvolverError: The name is not registered.
        EvolverSetupError: The method cannot run with this setup.
    """
    target = EVOLVERS.get(name)
    if target is None:
        raise UnknownEvolverError(f"no evolver {name!r}; known: {', '.join(EVOLVERS)}")
    module, _, attribute = target.partition(":")
    evolver = getattr(importlib.import_module(module), attribute)(setup)
    if not isinstance(evolver, Evolver):
        raise UnknownEvolverError(f"{target} is not an evolver")
    return evolver
