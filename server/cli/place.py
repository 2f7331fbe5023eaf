"""Where a run is, in the words of every command that shows it."""

from __future__ import annotations

from chorale.v1 import admin_pb2

__all__ = ["place_of"]


def place_of(run: admin_pb2.RunSummary, round_number: int, step: int) -> str:
    """Where a run is; steps are named where a round has several, and count from 1 for people.

    ``step`` counts from 0.
    """
    named = f", step {step + 1}/{run.steps}" if run.steps > 1 and round_number else ""
    return f"round {round_number}/{run.rounds}{named}"
