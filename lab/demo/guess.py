"""How long judging, working alone and replaying may take, from how long the silos' rounds took.

The silos' own files say what a try and a round's training took while four silos shared this
machine's cores. With fewer at once each is faster, until every one has a core of its own. Loading a
model is left out, so the guesses are rather short; they stand until a step was measured
(``stretch.py``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lab.demo.scenario import SILOS

__all__ = ["Guess"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """What all silos' rounds took together, in seconds of a silo while all of them worked."""

    work_s: float
    """Exploring and training."""
    explore_s: float
    """Exploring alone."""
    tries: int
    """Explored in that time."""
    cores: int
    """Of this machine."""

    @classmethod
    def of_silos(cls, directories: Sequence[Path], run_id: str) -> Self | None:
        """From the files of the rounds, where there are any."""
        work_s, explore_s, tries = 0.0, 0.0, 0
        for path in (directory / "rounds.jsonl" for directory in directories):
            for line in path.read_text().splitlines() if path.exists() else ():
                try:
                    row = json.loads(line)
                except ValueError:
                    # A silo that was killed may have left half a line, which counts for nothing.
                    continue
                if row["run"] == run_id:
                    took_s = row["duration_s"]
                    explore_s += took_s.get("explore", 0.0)
                    work_s += took_s.get("explore", 0.0) + took_s.get("train", 0.0)
                    tries += sum(row["episodes"].values())
        if not tries:
            return None
        return cls(work_s=work_s, explore_s=explore_s, tries=tries, cores=os.cpu_count() or 1)

    def tries_s(self, tries: int, *, silos: int) -> float:
        """What so many tries take each of ``silos`` at work at once."""
        return self._with(silos) * self.explore_s / self.tries * tries

    def alone_s(self, *, held_out_tries: int, at_once: int) -> float:
        """What all take that work alone and are judged, so many at once."""
        judging = self.tries_s(held_out_tries, silos=at_once) * len(SILOS)
        return (self._with(at_once) * self.work_s + judging) / at_once

    def _with(self, silos: int) -> float:
        """How long a silo's work takes with so many at once, where it took 1 with all of them."""
        return max(1.0, silos / self.cores) / max(1.0, len(SILOS) / self.cores)
