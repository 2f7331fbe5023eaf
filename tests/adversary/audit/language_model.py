"""The one-run audit on the small language model: canary tasks, ledger, noisy steps, losses."""

from __future__ import annotations

from pathlib import Path

from lab.audit.one_run import audit_one_run
from lab.membership.attack import Losses
from lab.membership.canaries import plant
from lab.membership.training import Settings, record_spec, train_privately
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
CANARIES = 400
EPSILON = 8.0


def language_model(directory: Path, *, canaries=CANARIES, steps=10):
    """Canary tasks by fair coins, one private training, the surest coins guessed."""
    settings = Settings(base_dir=BASE, rank=4, steps=steps, seed=0)
    planted = plant(BASE, canaries, seed=3)
    losses = Losses(BASE, rank=settings.rank, alpha=settings.alpha)
    before = losses.of(planted, settings.initial())
    spec = record_spec(settings, canaries=canaries, epsilon=EPSILON)
    trained = train_privately(settings, planted, spec, ledger_file=directory / "ledger")
    return (
        audit_one_run(
            scores=before - losses.of(planted, trained.adapter),
            included=planted.included,
            guesses=canaries // 10 * 2,
            delta=spec.delta,
            claimed_epsilon=trained.epsilon,
            name="tiny LM, one run",
        ),
    )
