"""``python -m lab.membership.run``: who was trained on? Without privacy, at ε = 8 and at ε = 1.

Each seed has canaries, coins and an initial adapter of its own and is trained on three times. The
sampling and the noise are those of production and follow no seed: a second call gives other figures
within the intervals. Prints a table and, last, the same as one line of JSON; draws the picture of
``docs/privacy.md``.

Ends with status 1 if

* the attack is weak without privacy: no score provably beats what ε = 8 allows, or
* the attack is weak under noise: at ε = 8 the best score that sees all steps has, in the mean over
  the seeds, less than half of the true positives that the accountant's curve allows, or
* a score provably finds more than the accountant's curve allows (``rates.Rates.exceeds``), which no
  pass can show to be impossible: a pass says that these attackers did not find more.

Covered: one machine, one process. Not covered: what the docs say of the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.audit.one_run import audit_one_run
from lab.membership.attack import Gradients, Losses, ridge, step_log_ratio
from lab.membership.canaries import Canaries, plant
from lab.membership.plot import Line, Panel, draw
from lab.membership.rates import Rates, Sample, rates_at
from lab.membership.tradeoff import TradeOff, gaussian_mu, gaussian_power, sampled_gaussian
from lab.membership.training import (
    BACKEND,
    Settings,
    Trained,
    record_spec,
    train_plainly,
    train_privately,
    trainer_of,
)
from lab.report.interval import LEAST_SEEDS

__all__ = ["Run", "attack_all", "main", "weak_or_leaking"]

TARGET = 0.01
EPSILONS = (8.0, 1.0)
SEEDS = (31, 32, 33)
LOSS, RIDGE = "final adapter: loss", "final adapter: ridge"
STEPS, STEPS_KNOWN = "all steps", "all steps, other members known"
PENALTY = 1.0
"""λ of the ridge in units of C²."""
LEAST_SHARE = 0.5
"""Of the bound at the first ε: what the best score that sees all steps has to reach."""
_DELTA = 1e-5
_GUESSED = 0.1

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One setting, trained with every seed, and what the attack made of it."""

    name: str
    """In tables."""
    epsilon: float
    """Charged by the ledger, at most; infinite without privacy."""
    noise_multiplier: float
    """z; 0 without privacy."""
    allowed: TradeOff | None
    """The accountant's trade-off curve; None without privacy."""
    samples: Mapping[str, Sequence[Sample]]
    """By score, one for each seed."""

    def rates(self, score: str) -> Rates:
        """At 1 % false positives."""
        return rates_at(self.samples[score], target=TARGET)


def attack_all(base_dir: Path, *, canaries: int, seeds: Sequence[int]) -> list[Run]:
    """Train without privacy and at each ε, with every seed, and attack each result."""
    runs = []
    for epsilon in (None, *EPSILONS):
        name = "no noise" if epsilon is None else f"ε = {epsilon:g}"
        samples: dict[str, list[Sample]] = {}
        charged = z = 0.0
        allowed = None
        for seed in seeds:
            settings = Settings(base_dir=base_dir, seed=seed)
            planted = plant(base_dir, canaries, seed=seed)
            trained = _train(settings, planted, epsilon)
            charged = max(charged, trained.epsilon)
            if allowed is None and epsilon is not None:
                z, allowed = _curve(trained, epsilon)
            for score, values in _scores(settings, planted, trained).items():
                sample = Sample(scores=values, included=planted.included)
                samples.setdefault(score, []).append(sample)
            sys.stderr.write(f"{name}, seed {seed}: trained and attacked\n")
        runs.append(
            Run(
                name=name,
                epsilon=charged,
                noise_multiplier=z,
                allowed=allowed,
                samples=samples,
            )
        )
    return runs


def weak_or_leaking(runs: Sequence[Run]) -> list[str]:
    """What speaks against the attack or against a run; nothing if all is well."""
    plain, strongest = runs[0], runs[1]
    curve = strongest.allowed
    if curve is None:
        raise ValueError("the second run is the one with the most ε")
    problems = [
        f"{run.name}, {score}: more members found than the accountant allows"
        for run in runs
        if run.allowed is not None
        for score in run.samples
        if run.rates(score).exceeds(run.allowed.power)
    ]
    # The larger of two bounds: this very mechanism's, and that of one Gaussian of that ε.
    mu = gaussian_mu(EPSILONS[0], _DELTA)

    def needed(rate: float) -> float:
        return max(gaussian_power(mu, rate), curve.power(rate))

    if not any(plain.rates(score).exceeds(needed) for score in plain.samples):
        problems.append(f"the attack is too weak: without noise it does not beat {strongest.name}")
    bound = curve.power(TARGET)
    best = max(strongest.rates(score).seeds.mean for score in (STEPS, STEPS_KNOWN))
    if best < LEAST_SHARE * bound:
        problems.append(
            f"the attack is too weak: at {strongest.name} and with all steps seen it finds "
            f"{best:.3f}, less than {LEAST_SHARE:g} of the bound {bound:.3f}"
        )
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.membership.run", description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("lab/base_model"))
    parser.add_argument("--canaries", type=int, default=1000, help="of each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--plot", type=Path, default=Path("docs/img/membership.png"))
    chosen = parser.parse_args(arguments)
    if len(set(chosen.seeds)) < LEAST_SEEDS:
        parser.error(f"a verdict takes at least {LEAST_SEEDS} different seeds")
    runs = attack_all(chosen.base, canaries=chosen.canaries, seeds=chosen.seeds)
    draw([_panel(run) for run in runs], chosen.plot, target=TARGET)
    sys.stdout.write(_table(runs) + "\n")
    problems = weak_or_leaking(runs)
    for problem in problems:
        sys.stdout.write(f"FAILED: {problem}\n")
    summary = _summary(runs, canaries=chosen.canaries, seeds=chosen.seeds)
    sys.stdout.write(json.dumps(summary, separators=(",", ":")) + "\n")
    return 1 if problems else 0


def _train(settings: Settings, planted: Canaries, epsilon: float | None) -> Trained:
    if epsilon is None:
        return train_plainly(settings, planted)
    spec = record_spec(settings, canaries=len(planted.rows), epsilon=epsilon)
    with tempfile.TemporaryDirectory() as directory:
        return train_privately(settings, planted, spec, ledger_file=Path(directory) / "ledger")


def _curve(trained: Trained, epsilon: float) -> tuple[float, TradeOff]:
    """The noise multiplier and the curve of the mechanism that trained."""
    if trained.spec is None or trained.spec.record is None:
        raise ValueError("a run without privacy has no curve")
    z = trained.spec.noise_multiplier
    return z, sampled_gaussian(
        q=trained.spec.record.sampling_rate,
        z=z,
        steps=trained.spec.record.steps_per_round,
        epsilon_max=1.5 * epsilon,
    )


def _scores(settings: Settings, planted: Canaries, trained: Trained) -> dict[str, Floats]:
    initial, final = settings.initial(), trained.adapter
    names = settings.trainable()
    losses = Losses(settings.base_dir, rank=settings.rank, alpha=settings.alpha)
    gradients = Gradients(trainer_of(settings), names, backend=BACKEND, clip_l2=settings.clip_l2)
    halfway = {name: np.float32(0.5) * (initial[name] + final[name]) for name in initial}
    move_P = np.concatenate([(final[name] - initial[name]).ravel() for name in names])
    scores: dict[str, Floats] = {
        LOSS: losses.of(planted, initial) - losses.of(planted, final),
        RIDGE: ridge(gradients.of(planted, halfway), move_P, penalty=PENALTY * settings.clip_l2**2),
    }
    if trained.spec is None:
        return scores
    noise_std = trained.spec.noise_multiplier * settings.clip_l2
    known = {
        STEPS: np.full(len(planted.rows), 0.5),
        STEPS_KNOWN: planted.included.astype(np.float64),
    }
    scores |= {score: np.zeros(len(planted.rows)) for score in known}
    for step in trained.steps:
        rows_NP = gradients.of(planted, step.adapter)
        gram_NN = (rows_NP @ rows_NP.T).astype(np.float64)
        products_N = (rows_NP @ step.noisy_sum).astype(np.float64)
        for score, member_N in known.items():
            scores[score] += step_log_ratio(
                gram_NN,
                products_N,
                member_N,
                sampling_rate=settings.sampling_rate,
                noise_std=noise_std,
            )
    return scores


def _panel(run: Run) -> Panel:
    return Panel(
        title=run.name,
        lines=[
            Line(label=score, samples=samples, seeds=run.rates(score).seeds)
            for score, samples in run.samples.items()
        ],
        allowed=run.allowed,
    )


def _table(runs: Sequence[Run]) -> str:
    heads = (
        "run",
        "score",
        "each seed",
        "mean, 95 % over seeds",
        "pooled, 95 %",
        "accountant's curve",
        "of the bound",
    )
    lines = [
        *(f"{run.name}: z {run.noise_multiplier:.3f}, ε {run.epsilon:.2f} charged" for run in runs),
        f"| {' | '.join(heads)} |",
        "|" + " --- |" * len(heads),
    ]
    for run in runs:
        bound = None if run.allowed is None else run.allowed.power(TARGET)
        for score in run.samples:
            rates = run.rates(score)
            seeds = rates.seeds
            low, high = max(0.0, seeds.low), min(1.0, seeds.high)
            pooled = f"{rates.true_positive_low:.3f}–{rates.true_positive_high:.3f}"
            share = (
                f"{seeds.mean / bound:.2f} ({low / bound:.2f}–{high / bound:.2f})" if bound else "–"
            )
            cells = (
                run.name,
                score,
                ", ".join(f"{rate:.3f}" for rate in seeds.rates),
                f"{seeds.mean:.3f} ({low:.3f}–{high:.3f})",
                f"{rates.true_positive_rate:.3f} ({pooled})",
                f"{bound:.3f}" if bound else "–",
                share,
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _summary(runs: Sequence[Run], *, canaries: int, seeds: Sequence[int]) -> dict[str, object]:
    return {
        "canaries_per_seed": canaries,
        "seeds": list(seeds),
        "target_fpr": TARGET,
        "runs": [
            {
                "run": run.name,
                "z": round(run.noise_multiplier, 4),
                "epsilon": None if run.allowed is None else round(run.epsilon, 3),
                "allowed": None if run.allowed is None else round(run.allowed.power(TARGET), 4),
                "scores": {score: _figures(run, score) for score in run.samples},
            }
            for run in runs
        ],
    }


def _figures(run: Run, score: str) -> dict[str, object]:
    rates = run.rates(score)
    figures: dict[str, object] = {
        "tpr_seeds": [round(rate, 4) for rate in rates.seeds.rates],
        "tpr_mean": round(rates.seeds.mean, 4),
        "tpr_mean_95": [round(rates.seeds.low, 4), round(rates.seeds.high, 4)],
        "tpr_pooled": round(rates.true_positive_rate, 4),
        "tpr_pooled_95": [round(rates.true_positive_low, 4), round(rates.true_positive_high, 4)],
        "fpr_pooled": round(rates.false_positive_rate, 4),
        "fpr_pooled_high": round(rates.false_positive_high, 4),
    }
    if score != STEPS_KNOWN:
        # Who knows the other coins is no auditor of one run, which guesses all of them.
        figures["one_run_epsilon_seeds"] = [_one_run(run, one) for one in run.samples[score]]
    return figures


def _one_run(run: Run, sample: Sample) -> float:
    guesses = 2 * max(1, int(_GUESSED * sample.scores.size / 2))
    found = audit_one_run(
        scores=sample.scores,
        included=sample.included,
        guesses=guesses,
        delta=_DELTA,
        claimed_epsilon=run.epsilon,
    )
    return round(found.measured, 3)


if __name__ == "__main__":
    sys.exit(main())
