"""The self-evolution methods by name. No torch until a method that needs it is made.

A literal table: a plan names a method, never code.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType

from silo_agent.evolve.evolver import Evolver, EvolverSetup, UnknownEvolverError

__all__ = ["EVOLVERS", "make_evolver"]

EVOLVERS: MappingProxyType[str, str] = MappingProxyType(
    {
        "constant": "silo_agent.evolve.constant:ConstantEvolver",
        "fed-se": "silo_agent.evolve.fed_se:FedSeEvolver",
    }
)


def make_evolver(name: str, setup: EvolverSetup) -> Evolver:
    """Make a method.

    Args:
        name: A key of ``EVOLVERS``.
        setup: What the silo gives it.

    Returns:
        The method, ready for work.

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
