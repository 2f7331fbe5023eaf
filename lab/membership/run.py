"""``python -m lab.membership.run``: who was trained on? Without privacy, at ε = 8 and at ε = 1.

Prints a table and, last, the same as one line of JSON; draws the picture of ``docs/privacy.md``.

Ends with status 1 if

* the attack is weak: without privacy it does not provably beat what ε = 8 allows, or
* a run with privacy leaks more than its accountant allows, which no pass can show to be impossible:
  a pass says that this attacker, with these canaries, did not find more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.audit.bounds import AuditResult
from lab.audit.one_run import audit_one_run
from lab.membership.attack import Losses, Rates, rates_at, roc
from lab.membership.canaries import Canaries, plant
from lab.membership.plot import Curve, draw
from lab.membership.tradeoff import TradeOff, gaussian_mu, gaussian_power, sampled_gaussian
from lab.membership.training import (
    Settings,
    Trained,
    record_spec,
    train_plainly,
    train_privately,
)

__all__ = ["Outcome", "attack_all", "main", "weak_or_leaking"]

TARGET = 0.01
EPSILONS = (8.0, 1.0)
_DELTA = 1e-5
_GUESSED = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One run and what the attack made of it."""

    name: str
    """In tables."""
    epsilon: float
    """Charged by the ledger; infinite without privacy."""
    noise_multiplier: float
    """z; 0 without privacy."""
    scores: npt.NDArray[np.float64]
    """One per canary."""
    rates: Rates
    """At 1 % false positives."""
    allowed: TradeOff | None
    """The accountant's trade-off curve; None without privacy."""
    one_run: AuditResult
    """The same scores as a lower bound on ε."""
    seconds: float
    """Of training."""

    @property
    def allowed_power(self) -> float:
        """The curve at the target; 1 without privacy."""
        return 1.0 if self.allowed is None else self.allowed.power(TARGET)

    @property
    def leaks(self) -> bool:
        """Whether it provably exceeds its own curve, false positives at their upper limit."""
        return self.allowed is not None and self.rates.exceeds(
            self.allowed.power(self.rates.false_positive_high)
        )


def attack_all(settings: Settings, *, canaries: int, seed: int) -> list[Outcome]:
    """Train three times on the same canaries, half of which are members, and attack each result.

    The seed is that of the canaries and their coins.
    """
    planted = plant(settings.base_dir, canaries, seed=seed)
    losses = Losses(settings.base_dir, rank=settings.rank, alpha=settings.alpha)
    before = losses.of(planted, settings.initial())
    outcomes = []
    for epsilon in (None, *EPSILONS):
        started = time.monotonic()
        trained = _train(settings, planted, epsilon)
        seconds = time.monotonic() - started
        scores = before - losses.of(planted, trained.adapter)
        outcomes.append(_judge(planted, trained, epsilon, scores, seconds))
    return outcomes


def weak_or_leaking(outcomes: list[Outcome]) -> list[str]:
    """What speaks against the attack or against a run; nothing if all is well."""
    plain, strongest = outcomes[0], outcomes[1]
    problems = [f"{o.name} leaks more than its accountant allows" for o in outcomes if o.leaks]
    # The larger of the two bounds: this very mechanism's, and any mechanism's of that ε.
    high = plain.rates.false_positive_high
    needed = gaussian_power(gaussian_mu(EPSILONS[0], _DELTA), high)
    if strongest.allowed is not None:
        needed = max(needed, strongest.allowed.power(high))
    if not plain.rates.exceeds(needed):
        problems.append(f"the attack is too weak: without privacy it does not beat {needed:.3f}")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.membership.run", description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("lab/base_model"))
    parser.add_argument("--canaries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, default=Path("docs/img/membership.png"))
    chosen = parser.parse_args(arguments)
    outcomes = attack_all(
        Settings(base_dir=chosen.base), canaries=chosen.canaries, seed=chosen.seed
    )
    draw([_curve(outcome, chosen) for outcome in outcomes], chosen.plot, target=TARGET)
    sys.stdout.write(_table(outcomes) + "\n")
    problems = weak_or_leaking(outcomes)
    for problem in problems:
        sys.stdout.write(f"FAILED: {problem}\n")
    sys.stdout.write(json.dumps(_summary(outcomes, chosen.canaries), separators=(",", ":")) + "\n")
    return 1 if problems else 0


def _train(settings: Settings, planted: Canaries, epsilon: float | None) -> Trained:
    if epsilon is None:
        return train_plainly(settings, planted)
    spec = record_spec(settings, canaries=len(planted.rows), epsilon=epsilon)
    with tempfile.TemporaryDirectory() as directory:
        return train_privately(settings, planted, spec, ledger_file=Path(directory) / "ledger")


def _judge(
    planted: Canaries,
    trained: Trained,
    epsilon: float | None,
    scores: npt.NDArray[np.float64],
    seconds: float,
) -> Outcome:
    allowed = None
    z = 0.0
    if trained.spec is not None and trained.spec.record is not None and epsilon is not None:
        z = trained.spec.noise_multiplier
        allowed = sampled_gaussian(
            q=trained.spec.record.sampling_rate,
            z=z,
            steps=trained.spec.record.steps_per_round,
            epsilon_max=1.5 * epsilon,
        )
    guesses = 2 * max(1, int(_GUESSED * len(planted.rows) / 2))
    return Outcome(
        name="DP off" if epsilon is None else f"ε = {epsilon:g}",
        epsilon=trained.epsilon,
        noise_multiplier=z,
        scores=scores,
        rates=rates_at(scores, planted.included, target=TARGET),
        allowed=allowed,
        one_run=audit_one_run(
            scores=scores,
            included=planted.included,
            guesses=guesses,
            delta=_DELTA,
            claimed_epsilon=trained.epsilon,
        ),
        seconds=seconds,
    )


def _curve(outcome: Outcome, chosen: argparse.Namespace) -> Curve:
    planted = plant(chosen.base, chosen.canaries, seed=chosen.seed)
    false, true = roc(outcome.scores, planted.included)
    return Curve(
        label=outcome.name,
        false_positive_rates=false,
        true_positive_rates=true,
        rates=outcome.rates,
        allowed=outcome.allowed,
    )


def _table(outcomes: list[Outcome]) -> str:
    heads = (
        "run",
        "z",
        "ε charged",
        "TPR at 1 % FPR",
        "95 % interval",
        "accountant allows",
        "one-run ε",
        "training",
    )
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for one in outcomes:
        rates = one.rates
        allowed = "–" if one.allowed is None else f"{one.allowed_power:.3f}"
        lines.append(
            f"| {one.name} | {one.noise_multiplier:.3f} | {one.epsilon:.2f} "
            f"| {rates.true_positive_rate:.3f} "
            f"| {rates.true_positive_low:.3f}–{rates.true_positive_high:.3f} "
            f"| {allowed} | ≥ {one.one_run.measured:.2f} | {one.seconds:.0f} s |"
        )
    for epsilon in EPSILONS:
        power = gaussian_power(gaussian_mu(epsilon, _DELTA), TARGET)
        lines.append(f"any mechanism that is one Gaussian of ε = {epsilon:g}: {power:.3f}")
    return "\n".join(lines)


def _summary(outcomes: list[Outcome], canaries: int) -> dict[str, object]:
    return {
        "canaries": canaries,
        "target_fpr": TARGET,
        "runs": [
            {
                "run": one.name,
                "z": round(one.noise_multiplier, 4),
                "epsilon": None if one.allowed is None else round(one.epsilon, 3),
                "tpr": round(one.rates.true_positive_rate, 4),
                "tpr_95": [
                    round(one.rates.true_positive_low, 4),
                    round(one.rates.true_positive_high, 4),
                ],
                "fpr": round(one.rates.false_positive_rate, 4),
                "allowed": round(one.allowed_power, 4),
                "one_run_epsilon": round(one.one_run.measured, 3),
            }
            for one in outcomes
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
