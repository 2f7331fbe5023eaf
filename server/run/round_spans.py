"""The spans of a run: one for each release, and in it one for each phase.

A release begins a trace; silos are told its ``traceparent`` and put what they do into it, each for
its own collector.

Invariants: a span that is begun is ended, by the next one, by the end of the release, or when
nobody drives the run any more; without tracing nothing is kept.

Covered: releases, phases, attempts that follow each other, a run that goes on after a pause. Not
covered: a release over a coordinator's restart, which is two traces.
"""

from __future__ import annotations

from ops.tracing.spans import NO_SPAN, Span, begin

__all__ = ["RoundSpans"]


class RoundSpans:
    """Of one run."""

    def __init__(self) -> None:
        self._release: Span = NO_SPAN
        self._phase: Span = NO_SPAN
        self._place: tuple[int, int] | None = None

    @property
    def traceparent(self) -> str:
        """Of the release that is open; empty while none is."""
        return self._release.traceparent

    def enter(self, phase: str, *, round_number: int, step: int, attempt: int) -> None:
        """Begin a phase, and the release where it is the first.

        Args:
            phase: Its name.
            round_number: The release's round.
            step: Its step.
            attempt: Which attempt at it.
        """
        if self._place != (round_number, step):
            self.end()
            self._place = round_number, step
            self._release = begin("round", root=True, round=round_number, step=step)
        self._phase.end()
        self._phase = begin(f"phase {phase}", parent=self._release, attempt=attempt)

    def leave(self) -> None:
        """End the phase."""
        self._phase.end()
        self._phase = NO_SPAN

    def end(self, outcome: str = "") -> None:
        """End the release, if one is open.

        Args:
            outcome: How it ended; empty if it did not, because nobody drives it any more.
        """
        self.leave()
        if outcome:
            self._release.note(outcome=outcome)
        self._release.end()
        self._release, self._place = NO_SPAN, None
