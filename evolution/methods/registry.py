"""Making a plan's method. No torch until a method that needs it is made.

A card says where a method's code is (``federation.plan.methods``): a plan names a method, never
code.
"""

from __future__ import annotations

import importlib

from evolution.errors import UnknownEvolverError
from evolution.methods.evolver import Evolver, EvolverSetup

__all__ = ["make_evolver"]


def make_evolver(setup: EvolverSetup) -> Evolver:
    """Make the method of a set-up's recipe.

    Raises:
        UnknownEvolverError: Its code is not there, or is no method.
        EvolverSetupError: The method cannot run with this setup.
    """
    target = setup.recipe.method.code
    module, _, attribute = target.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownEvolverError(f"{target} cannot be loaded: {error}") from error
    evolver = kind(setup)
    if not isinstance(evolver, Evolver):
        raise UnknownEvolverError(f"{target} is not an evolver")
    return evolver
