"""Where a run is now: the phase, since when, until when; for store, metrics, traces and admin.

A release begins a trace; silos are told its ``traceparent`` and put what they do into it, each for
its own collector.

Invariants:

1. A phase is in the store before it is shown; entering one again after a restart keeps the time at
   which it was entered first.
2. A span that is begun is ended, by the next one, by the end of the release, or when nobody drives
   the run any more; without tracing nothing is kept.

Covered: phases and the time each took, over restarts; attempts that follow each other, a run that
goes on after a pause. Not covered: what happens in a phase; a release over a coordinator's restart,
which is two traces.
"""

from __future__ import annotations

from opentelemetry.trace import INVALID_SPAN, Span

from federation.chain.record import Place
from ops.tracing.spans import begin, end, note, traceparent_of
from server.context import RunContext
from server.figures import STEPS, Phase, RoundFigures
from server.store.rounds import AttemptPlace

__all__ = ["Progress", "RoundSpans"]


class RoundSpans:
    """The spans of one run: one for each release, and in it one for each phase."""

    def __init__(self) -> None:
        self._release: Span = INVALID_SPAN
        self._phase: Span = INVALID_SPAN
        self._place: tuple[int, int] | None = None

    @property
    def traceparent(self) -> str:
        """Of the release that is open; empty while none is."""
        return traceparent_of(self._release)

    def enter(self, phase: str, *, round_number: int, step: int, attempt: int) -> None:
        """Begin a phase, and the release where it is the first."""
        if self._place != (round_number, step):
            self.end()
            self._place = round_number, step
            self._release = begin("round", parent=INVALID_SPAN, round=round_number, step=step)
        end(self._phase)
        self._phase = begin(f"phase {phase}", parent=self._release, attempt=attempt)

    def leave(self) -> None:
        """End the phase."""
        end(self._phase)
        self._phase = INVALID_SPAN

    def end(self, outcome: str = "") -> None:
        """End the release, if one is open; no outcome if nobody drives it any more."""
        self.leave()
        if outcome:
            note(self._release, outcome=outcome)
        end(self._release)
        self._release, self._place = INVALID_SPAN, None


class Progress:
    """One run's current round, and the step it is at."""

    def __init__(self, run_id: str, context: RunContext) -> None:
        self._run_id = run_id
        self._context = context
        self.figures = RoundFigures(round=0)
        self.spans = RoundSpans()

    def begin(self, place: Place, *, attempt: int, adapter_sha256: bytes) -> None:
        """Start with empty figures."""
        self.figures = RoundFigures(
            round=place.round, step=place.step, attempt=attempt, adapter_sha256=adapter_sha256
        )
        self._context.metrics.set_place(place.round, place.step)

    @property
    def at(self) -> AttemptPlace:
        """The attempt that the figures are about."""
        figures = self.figures
        return AttemptPlace(
            run_id=self._run_id, round=figures.round, step=figures.step, attempt=figures.attempt
        )

    def enter(self, phase: Phase, deadline_unix_s: float, attempt: int) -> None:
        """Note that a phase begins."""
        figures, now = self.figures, self._context.clock()
        figures.phase, figures.phase_since_unix_s = phase, now
        figures.deadline_unix_s, figures.attempt = deadline_unix_s, attempt
        self._context.store.rounds.set_phase(self.at, phase.value, now)
        self._context.metrics.set_phase(phase.value)
        self.spans.enter(
            phase.value, round_number=figures.round, step=figures.step, attempt=attempt
        )
        self._context.changed.notify()

    def leave(self) -> None:
        """Note that the phase is over."""
        self.spans.leave()
        figures = self.figures
        spent = self._context.clock() - figures.phase_since_unix_s
        figures.timings_s[figures.phase.value] = (
            figures.timings_s.get(figures.phase.value, 0.0) + spent
        )
        self._context.metrics.phase_duration.labels(phase=figures.phase.value).observe(spent)

    def close(self, figures: RoundFigures) -> None:
        """Show the figures of a release that is over."""
        self.figures = figures
        self.spans.end(figures.outcome)

    def recall(self, phase: Phase) -> None:
        """Go on in this phase after a restart, with the times so far from the store.

        The outage counts as its phase's.
        """
        figures, at = self.figures, self.at
        rows = self._context.store.rounds.list(at.run_id)
        here = [r for r in rows if (r.round, r.step, r.attempt) == (at.round, at.step, at.attempt)]
        if not here:
            # A step that follows without a task is opened before it enters its first phase.
            return
        times = here[0].phases
        ends = [*(time.at_unix_s for time in times[1:]), self._context.clock()]
        for time, end_unix_s in zip(times, ends, strict=True):
            figures.timings_s[time.phase] = end_unix_s - time.at_unix_s
        figures.phase, figures.phase_since_unix_s = phase, times[-1].at_unix_s

    @staticmethod
    def deadline(now_unix_s: float, phase_s: float, deadlines_unix_s: tuple[int, ...]) -> float:
        """When a phase that is entered now closes at the latest.

        A phase has ``phase_s`` from when it is entered. The descriptor's own deadlines, which the
        silos checked, allow as much, for no phase before it took longer; only a restart can use up
        what they leave, and then the end of the last step is the bound: the silos are there again
        and what they have sent is here, so closing at once would cost them their places.
        """
        return min(now_unix_s + phase_s, deadlines_unix_s[len(STEPS) - 1])
