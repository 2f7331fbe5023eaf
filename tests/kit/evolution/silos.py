"""Silos that learn by a recipe, by default Fed-SE, on the tiny base model; end with the test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from evolution.methods.evolver import Assignment, EvolverSetup
from evolution.methods.recipe import RecipeEvolver


@contextmanager
def silos(
    base: Path, directory: Path, environment: str, *, rank: int, alpha: float
) -> Iterator[Callable[..., RecipeEvolver]]:
    """What makes a silo by its name and by what is other than usual in its `EvolverSetup`."""
    with ExitStack() as closing:

        def make(name: str = "silo", **changes: Any) -> RecipeEvolver:
            setup: dict[str, Any] = {
                "assignments": (Assignment(environment=environment),),
                "base_dir": base,
                "state_dir": directory / name,
                "rank": rank,
                "alpha": alpha,
            }
            silo = RecipeEvolver(EvolverSetup(**setup | changes))
            closing.callback(silo.close)
            return silo

        yield make
