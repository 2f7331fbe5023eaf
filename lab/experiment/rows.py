"""The lines of ``results.jsonl``: one JSON object each, ``kind`` first.

``lab/report/lines.py`` reads them and says what each key means. A shared adapter is judged once and
written once with ``silo`` −1, and again for each silo with ``own`` and ``same_family`` of that
silo, because whether a task is one's own is a question of the silo and not of the adapter.

Covered: making lines. Not covered: writing them (``results.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from evolution.methods.personal.compared import Candidate
from lab.experiment.config import Run
from lab.experiment.federation_round import RoundFigures
from lab.experiment.judge import Judged
from lab.experiment.tasks.environments import catalogue_of
from lab.experiment.tasks.own_tasks import own_labels

__all__ = ["Row", "Scope", "eval_rows", "families_of", "round_row", "run_row"]

Row = dict[str, Any]
Scope = Literal["global", "personal", "chosen", "alone"]
EVERYBODY = -1


def families_of(run: Run, index: int) -> frozenset[str]:
    """The public families of a silo's environments."""
    return frozenset(catalogue_of(run).family(name) for name in run.silos[index].environments)


def round_row(run: Run, number: int, figures: RoundFigures, *, wall_s: float) -> Row:
    """What a round, counted from 1, amounts to, with the figures of all silos of it.

    ``wall_s`` is local work and aggregation, without judging. Where not all silos take part in a
    round, ``silos`` has the places of those that did; ``simulated`` is a round's in simulated time.
    """
    took_part = {} if run.per_round is None else {"silos": figures.silos}
    simulated = {"simulated": figures.simulated} if figures.simulated else {}
    return {
        "kind": "round",
        **_of(run),
        "round": number,
        **took_part,
        "successes": dict(sorted(figures.successes.items())),
        "episodes": dict(sorted(figures.episodes.items())),
        "kappa": figures.kappa,
        "zeta2": figures.zeta2,
        # Nobody is in the sum of a round that was lost.
        "delta_l2_mean": sum(figures.norms) / max(len(figures.norms), 1),
        **_guarding(figures),
        "wall_s": round(wall_s, 3),
        **simulated,
    }


def _guarding(figures: RoundFigures) -> Row:
    """Of a run whose silos have guards: vetoes as a coordinator reads them, or the way back."""
    if figures.guarding is None:
        return {}
    vetoes = figures.guarding.vetoes
    return {
        "vetoes": None if vetoes is None else vetoes.mean,
        "vetoes_error": None if vetoes is None else vetoes.standard_error,
        "restored_round": figures.guarding.restored_round,
    }


def eval_rows(
    run: Run,
    number: int,
    judged: Sequence[Judged],
    *,
    silos: Sequence[int],
    scope: Scope,
    chosen: Candidate | None = None,
) -> list[Row]:
    """One adapter's verdicts after a round, 0 before the first, for silos; −1 is everybody.

    ``chosen`` is which adapter it is, where a silo chose one.
    """
    what = {} if chosen is None else {"adapter": chosen.kind, "weight": chosen.weight}
    rows = []
    for silo in silos:
        families = frozenset() if silo == EVERYBODY else families_of(run, silo)
        for one in judged:
            own = same = None
            if silo != EVERYBODY:
                own = one.label in own_labels(run, silo, one.environment)
                same = one.family in families
            rows.append(
                {
                    "kind": "eval",
                    **_of(run),
                    "round": number,
                    "silo": silo,
                    "scope": scope,
                    **what,
                    "environment": one.environment,
                    "family": one.family,
                    "label": one.label,
                    "own": own,
                    "same_family": same,
                    "temperature": one.temperature,
                    "outcomes": one.outcomes,
                }
            )
    return rows


def run_row(
    run: Run,
    *,
    wall_s: float,
    episodes: int,
    adapter_sha256: str,
    versions: dict[str, str],
    panels: Mapping[str, Mapping[str, Any]],
) -> Row:
    """A run that is done.

    ``wall_s`` is everything, judging included; ``episodes`` those that all silos explored together.
    ``adapter_sha256`` is that of the final adapter, and of several the digest of their digests.
    ``panels`` are the tasks that it was judged on, by environment: how many, and their digest.
    """
    config = run.described()
    for index, silo in enumerate(config["silos"]):
        silo["families"] = sorted(families_of(run, index))
        silo["own_labels"] = {
            name: sorted(own_labels(run, index, name)) for name in run.silos[index].environments
        }
    return {
        "kind": "run",
        "experiment": run.experiment,
        **_of(run),
        "config": config,
        "config_sha256": run.sha256,
        "panels": {name: dict(panel) for name, panel in panels.items()},
        "rounds": run.rounds,
        "wall_s": round(wall_s, 3),
        "episodes": episodes,
        "adapter_sha256": adapter_sha256,
        "versions": versions,
    }


def _of(run: Run) -> Row:
    return {"setting": run.setting, "method": run.method, "seed": run.seed}
