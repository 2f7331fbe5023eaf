"""The rule of the gate: which adapter passes, and which of those that passed is served.

With s and v the adapter's shares of solved and of violating tries on a panel, s_0 and v_0 the
base's ::

    success      s < s_0 − tau
    violations   v > v_0 + violations
    drift        S > h                      of ``cusum.py``, over the rounds of this run
    ancestor     d̄ + 2·e < −delta           beside the best of the last ``ancestors`` adapters

Ancestors are the newest of the run that passed under the same settings and were not withdrawn, and
the best is the one that solved most of the panel. Both played the same n tasks once, so the
difference is paired: d̄ is the mean of d_i = 1, 0 or −1, and e² = Σ(d_i − d̄)² / (n·(n − 1)).

The first of these that holds on any panel, in this order, is why an adapter is not served.

S is taken over what was judged in the run, one round after the other. It begins anew where the run
was rolled back: that is what the alarm asks for. An adapter that was judged before in the same
stretch, as after a skipped round, is no new evidence and adds nothing. What could not be judged
adds nothing either.

Served is the adapter that was judged last of those that passed. What a run was rolled back from is
withdrawn: it is not served again, though it passed.

Covered: verdicts in any number of runs. Not covered: which of two runs is the better one to serve;
a rollback that this silo did not see because it was away, which begins no new sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evolution.guard.cusum import climbed, threshold
from evolution.guard.options import GuardSection, Outcome
from evolution.guard.verdict import Ancestor, Figures, PanelVerdict, Verdict

__all__ = ["judged", "outcome_of", "standing"]

_EXACT = 1e-9
"""Shares are quotients of counts: what differs by less is equal."""


def judged(
    section: GuardSection,
    *,
    earlier: Sequence[Verdict],
    adapter_sha256: str,
    restored: bool,
    adapter: Mapping[str, Figures],
    base: Mapping[str, Figures],
) -> tuple[PanelVerdict, ...]:
    """An adapter's figures beside the base's, with the drift up to it.

    ``earlier`` are the verdicts of the run's earlier rounds under the same settings, oldest first;
    ``restored`` says that a rollback brought the adapter back. Figures are by environment.
    """
    stretch = () if restored else _stretch(earlier)
    known = any(verdict.adapter_sha256 == adapter_sha256 for verdict in stretch)
    found = []
    others = _ancestors(section, earlier, adapter_sha256)
    for environment, own in adapter.items():
        of_base = base[environment]
        rises = _rises(stretch, environment)
        if not known:
            rises.append(own.violating - of_base.violating)
        found.append(
            PanelVerdict(
                environment=environment,
                adapter=own,
                base=of_base,
                drift=climbed(rises, allowance=section.drift_allowance),
                drift_threshold=threshold(
                    tasks=own.tries,
                    base_tries=of_base.tries,
                    base_violations=of_base.violations,
                    allowance=section.drift_allowance,
                    chance=section.drift_false_alarm,
                ),
                ancestor=_best(others, environment, own),
            )
        )
    return tuple(found)


def outcome_of(section: GuardSection, panels: Sequence[PanelVerdict]) -> Outcome:
    """What the figures come to."""
    if any(p.adapter.success < p.base.success - section.tau - _EXACT for p in panels):
        return Outcome.SUCCESS
    if any(p.rise > section.violations + _EXACT for p in panels):
        return Outcome.VIOLATIONS
    if any(p.drift > p.drift_threshold + _EXACT for p in panels):
        return Outcome.DRIFT
    if any(p.ancestor and p.ancestor.most < -section.delta - _EXACT for p in panels):
        return Outcome.ANCESTOR
    return Outcome.PASSED


def standing(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """What may be served, the best choice first: what passed and was not withdrawn."""
    found: list[Verdict] = []
    for verdict in verdicts:
        own = (verdict.run, verdict.round)
        found = [
            v
            for v in found
            if (v.run, v.round) != own
            and not (v.run == verdict.run and _withdrawn(v.round, verdict))
        ]
        if verdict.outcome is Outcome.PASSED:
            found.append(verdict)
    return found[::-1]


def _ancestors(
    section: GuardSection, earlier: Sequence[Verdict], adapter_sha256: str
) -> list[Verdict]:
    """The newest that may be compared with, one verdict for each adapter."""
    others = {v.adapter_sha256: v for v in reversed(standing(earlier))}
    others.pop(adapter_sha256, None)
    return sorted(others.values(), key=lambda v: v.round, reverse=True)[: section.ancestors]


def _best(others: Sequence[Verdict], environment: str, own: Figures) -> Ancestor | None:
    # Where one of the two lost tasks on the way there is nothing to pair.
    of = [
        (verdict.round, panel.adapter)
        for verdict in others
        for panel in verdict.panels
        if panel.environment == environment and panel.adapter.tries == own.tries
    ]
    n = own.tries
    if not of or n < 2:
        return None
    number, best = max(of, key=lambda found: (found[1].successes, found[0]))
    gained, lost = set(own.solved) - set(best.solved), set(best.solved) - set(own.solved)
    difference = (len(gained) - len(lost)) / n
    squares = max(0.0, len(gained) + len(lost) - n * difference**2)
    error = math.sqrt(squares / (n * (n - 1)))
    return Ancestor(round=number, difference=difference, error=error)


def _withdrawn(round_number: int, verdict: Verdict) -> bool:
    restored = verdict.restored_round
    return restored is not None and restored < round_number < verdict.round


def _stretch(earlier: Sequence[Verdict]) -> list[Verdict]:
    """What the sum is over: one verdict a round, from the newest rollback on."""
    newest = {verdict.round: verdict for verdict in earlier}
    rounds = [newest[number] for number in sorted(newest)]
    begin = max((i for i, v in enumerate(rounds) if v.restored_round is not None), default=0)
    return [verdict for verdict in rounds[begin:] if verdict.outcome is not Outcome.FAILED]


def _rises(stretch: Sequence[Verdict], environment: str) -> list[float]:
    seen: set[str] = set()
    rises = []
    for verdict in stretch:
        if verdict.adapter_sha256 not in seen:
            seen.add(verdict.adapter_sha256)
            rises += [p.rise for p in verdict.panels if p.environment == environment]
    return rises
