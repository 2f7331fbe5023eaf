"""Silos that learn with Fed-SE on the tiny base model, and end with the test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from evolution.methods.evolver import Assignment, EvolverSetup
from evolution.methods.fed_se import FedSeEvolver


@contextmanager
def silos(
    base: Path, directory: Path, environment: str, *, rank: int, alpha: float
) -> Iterator[Callable[..., FedSeEvolver]]:
    """What makes a silo by its name and by what is other than usual in its `EvolverSetup`."""
    with ExitStack() as closing:

        def make(name: str = "silo", **changes: Any) -> FedSeEvolver:
            setup: dict[str, Any] = {
                "assignments": (Assignment(environment=environment),),
                "base_dir": base,
                "state_dir": directory / name,
                "rank": rank,
                "alpha": alpha,
            }
            silo = FedSeEvolver(EvolverSetup(**setup | changes))
            closing.callback(silo.close)
            return silo

        yield make
