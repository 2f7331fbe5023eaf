"""One silo's guard in a simulated federation: real judging, with its verdicts in the silo's stores.

What a round begins with is judged by ``evolution/guard``, as a real silo's guard does it, on the
public panel and with draws of the silo's own. Verdicts are lines of ``guard.jsonl`` beside the
silo's memory, so whatever keeps, copies and restores stores keeps them.

Invariants: an attacker judges nothing. A panel that cannot be played ends the run: a silo without a
verdict would count as content, and figures that lack one are not comparable.

Covered: verdicts, the veto, what a silo serves. Not covered: writing adapters for a server, private
panels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from evolution.guard.judging import Adopted, Judging
from evolution.guard.panel import Plays
from evolution.guard.rule import standing
from evolution.methods.evolver import Evolver
from lab.experiment.config import Run

__all__ = ["Head", "is_attacker", "refuses", "served_round"]

VERDICTS: Final = "guard.jsonl"
_STREAM: Final = 0x6A2D
"""Keeps a guard's draws apart from others of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Which adapter a round begins with."""

    round: int
    """The round that ended with it, above 0."""
    restored_round: int | None = None
    """Of a rollback: the round whose adapter it is."""


def is_attacker(run: Run, index: int) -> bool:
    """Whether a silo does not keep to the protocol."""
    return run.attack is not None and run.silos[index].name == run.attack.silo


def refuses(
    run: Run,
    index: int,
    state_dir: Path,
    *,
    evolver: Evolver,
    head: Head,
    adapter: Mapping[str, np.ndarray],
    adapter_sha256: str,
) -> bool:
    """Judge what a round begins with, and keep the verdict; whether this silo vetoes it.

    Raises:
        EvolveError: The panel cannot be played.
        ValueError: The run has no guards.
    """
    if run.guard is None:
        raise ValueError("the run has no guards")
    drawn = np.random.SeedSequence([run.seed, index, _STREAM]).generate_state(1, np.uint32)
    plays = Plays(
        section=run.guard.section,
        seed=int(drawn[0]),
        base_sha256=run.base_sha256,
        episodes_at_once=run.evolve.rollout_batch,
    )
    judging = _judging(state_dir)
    adopted = Adopted(
        run=_name(run),
        round=head.round,
        adapter_sha256=adapter_sha256,
        restored_round=head.restored_round,
        tensors=adapter,
    )
    judging.keep(judging.verdict(lambda: evolver, adopted, plays))
    return judging.refuses(_name(run), adapter_sha256)


def served_round(state_dir: Path) -> int | None:
    """The round whose adapter a silo serves; None where it serves the base."""
    best = standing(_judging(state_dir).verdicts)
    return best[0].round if best else None


def _judging(state_dir: Path) -> Judging:
    path = state_dir / VERDICTS

    def keep(row: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    lines = path.read_text().splitlines() if path.exists() else ()
    return Judging(rows=[json.loads(line) for line in lines], keep=keep)


def _name(run: Run) -> str:
    return f"{run.setting}-{run.seed}"
