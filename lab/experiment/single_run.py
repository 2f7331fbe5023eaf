"""One run from its first adapter to its last judgement.

The silos are the product's own: ``evolution.methods`` explores and trains, ``lab.aggregation``
combines, ``dp`` and ``secagg`` make the sums. What is not here is transport, disk and the ledger.

Invariants:
    1. Equal values give equal rows, apart from times; masks do not change a bit of them.
    2. Every silo starts each round from its circle's adapter, bit for bit.
    3. The rows of a run end with its ``run`` row; a run without one is not done.

Covered: every method of ``methods.py``. Not covered: continuing a run in the middle; whoever was
interrupted starts the run again (``runner.py``), never one that is done.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dp.noise.share import per_silo_sigma
from evolution.envs.catalogue import BUILT_IN
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from federation.adapter.layout import Layout
from lab.aggregation.aggregation import LabAggregation, MeanOf, make_lab_aggregation
from lab.experiment.attack import AttackedMean
from lab.experiment.config import Run
from lab.experiment.federation_round import (
    Circle,
    RoundFigures,
    SharingCircle,
    SoleCircle,
    play_round,
)
from lab.experiment.groups import GroupedSum
from lab.experiment.judge import Judge
from lab.experiment.masked import MaskedSum
from lab.experiment.member import Adapter, Member, identity
from lab.experiment.methods import METHODS, clusters
from lab.experiment.rows import (
    EVERYBODY,
    Row,
    Scope,
    eval_rows,
    families_of,
    round_row,
    run_row,
)
from lab.experiment.sums import PlainSum

__all__ = ["Progress", "RunResult", "aggregation_of", "play_run"]

Progress = Callable[[int, RoundFigures, float], None]
"""Called after each round with its number, its figures and its seconds."""
_ADAPTIVE = frozenset({"fedadagrad", "fedyogi", "fedadam"})
_PACKAGES = ("chorale", "torch", "transformers", "peft", "numpy")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What a run leaves."""

    rows: list[Row]
    """For ``results.jsonl``, the ``run`` row last."""
    adapters: list[dict[str, Any]]
    """Final adapters, circle after circle."""
    personal: dict[int, dict[str, Any]]
    """What each silo would use, by its index, where the method leaves it an adapter of its own."""

    def write_adapters(self, directory: Path) -> None:
        """Keep ``adapter-CIRCLE`` and ``personal-SILO``, as the product publishes an adapter.

        The directory is created if absent.
        """
        directory.mkdir(parents=True, exist_ok=True)
        named = {f"adapter-{index}": adapter for index, adapter in enumerate(self.adapters)}
        named |= {f"personal-{silo}": adapter for silo, adapter in self.personal.items()}
        for name, adapter in named.items():
            (directory / f"{name}.safetensors").write_bytes(encode_adapter(adapter))


def aggregation_of(run: Run, adapter: Adapter, *, silos: int) -> LabAggregation:
    """The arithmetic between so many silos; any adapter of the run gives the shapes.

    Raises:
        ValueError: The method, its optimiser or its options are wrong.
    """
    # FedSA is a method of silo and federation at once: nothing but A may be shared.
    method = "fedsa" if METHODS[run.method].personal == "fedsa" else run.aggregation.method
    return make_lab_aggregation(
        method,
        Layout.from_tensors(dict(adapter)),
        silos=silos,
        clip_l2=run.noise.clip_l2,
        server_step=run.aggregation.server_step,
        gauge=run.aggregation.gauge,
        server_optimiser=run.aggregation.server_optimiser,
        options={**_noise_variance(run, silos=silos), **run.aggregation.options},
    )


def _noise_variance(run: Run, *, silos: int) -> dict[str, float]:
    """What adaptive server optimisers take off their second moment under noise."""
    if run.noise.z == 0 or run.aggregation.server_optimiser not in _ADAPTIVE:
        return {}
    sigma = per_silo_sigma(run.noise.z, run.noise.grid, t=silos, n_min=silos, c=1)
    unit = run.noise.clip_l2 / run.noise.grid
    return {"noise_variance": (sigma * unit) ** 2 / silos}


def play_run(run: Run, scratch: Path, *, progress: Progress) -> RunResult:
    """Run one setting at one seed.

    The silos' stores are in ``scratch``, an empty directory that the caller removes. Progress is
    told of every round.

    Raises:
        ExperimentError: It cannot be run as asked.
        ValueError: The aggregation is unknown, or its options are wrong.
    """
    started_s = time.perf_counter()
    with ExitStack() as stack:
        judge = Judge(run)
        stack.callback(judge.close)
        circles = _circles(run, scratch, judge, stack)
        rows: list[Row] = []
        episodes = 0
        if not circles:
            rows += _judge(run, 0, judge, {}, silos=_everyone(run), scope="global")
        for number in range(1, run.rounds + 1):
            round_started_s = time.perf_counter()
            figures = play_round(circles, number)
            wall_s = time.perf_counter() - round_started_s
            episodes += figures.episodes.total()
            rows.append(round_row(run, number, figures, wall_s=wall_s))
            rows += _judge_round(run, number, judge, circles)
            progress(number, figures, time.perf_counter() - round_started_s)
        adapters = [circle.adapter for circle in circles]
        personal = {
            silo: member.personal(circle.adapter)
            for circle in circles
            for member in circle.members
            for silo in member.indices
            if METHODS[run.method].personal
        }
    rows.append(
        run_row(
            run,
            wall_s=time.perf_counter() - started_s,
            episodes=episodes,
            adapter_sha256=_digest(adapters),
            versions={
                "python": platform.python_version(),
                **{package: version(package) for package in _PACKAGES},
            },
        )
    )
    return RunResult(rows=rows, adapters=adapters, personal=personal)


def _circles(run: Run, scratch: Path, judge: Judge, stack: ExitStack) -> list[Circle]:
    method = METHODS[run.method]
    everyone = range(len(run.silos))
    first = initial_adapter(run.base, run.rank, run.alpha, run.seed)

    def member(indices: Sequence[int]) -> Member:
        made = Member(run, indices, scratch, chat=judge.chat)
        stack.callback(made.close)
        return made

    if method.topology == "none":
        return []
    if method.topology == "central":
        return [SoleCircle([member(everyone)], first)]
    if method.topology == "alone":
        return [SoleCircle([member([index])], first) for index in everyone]
    groups: tuple[tuple[int, ...], ...] = (tuple(everyone),)
    if method.clustered:
        groups = clusters([families_of(run, index) for index in everyone])
    return [
        SharingCircle(
            [member([index]) for index in group],
            first,
            aggregation=aggregation_of(run, first, silos=len(group)),
            mean=_mean(run, group),
        )
        for group in groups
    ]


def _mean(run: Run, group: tuple[int, ...]) -> MeanOf:
    """How the vectors of these silos become a mean."""
    kind = MaskedSum if run.sums == "masked" else PlainSum
    silos, key = len(group), (run.seed, *group)
    mean: MaskedSum | PlainSum | GroupedSum = kind(run.noise, silos=silos, key=key)
    if run.groups is not None:
        mean = GroupedSum(kind, run.noise, run.groups, silos=silos, key=key)
    if run.attack is None:
        return mean
    place = [silo.name for silo in run.silos].index(run.attack.silo)
    return AttackedMean(mean, run.attack, place=place, key=key)


def _judge_round(run: Run, number: int, judge: Judge, circles: Sequence[Circle]) -> list[Row]:
    """Judge what the method's silos would use after this round."""
    method = METHODS[run.method]
    rows: list[Row] = []
    # Without a silo's own B the shared adapter of FedSA is the base model's function.
    shared = method.topology != "alone" and not method.clustered and method.personal != "fedsa"
    if shared and run.judged_after(number, shared=True):
        adapter = circles[0].adapter
        rows += _judge(run, number, judge, adapter, silos=_everyone(run), scope="global")
    if not run.judged_after(number, shared=False):
        return rows
    scope: Scope = "alone" if method.topology == "alone" else "personal"
    for circle in circles if method.clustered or method.topology == "alone" else ():
        silos = [index for member in circle.members for index in member.indices]
        rows += _judge(run, number, judge, circle.adapter, silos=silos, scope=scope)
    for circle in circles if method.personal else ():
        for member in circle.members:
            own = member.personal(circle.adapter)
            rows += _judge(run, number, judge, own, silos=member.indices, scope="personal")
    return rows


def _judge(
    run: Run,
    number: int,
    judge: Judge,
    adapter: Adapter,
    *,
    silos: Sequence[int],
    scope: Scope,
) -> list[Row]:
    """Judge one adapter: in full in the families of whoever it is for, elsewhere on fewer tasks."""
    near = frozenset(
        family for silo in silos if silo != EVERYBODY for family in families_of(run, silo)
    )
    names = dict.fromkeys(name for silo in run.silos for name in silo.environments)
    held_out = {
        name: run.judge.held_out if BUILT_IN.family(name) in near else run.judge.held_out_other
        for name in names
    }
    version_of = identity(adapter) if adapter else "base"
    judged = judge.judge(version_of, adapter, held_out)
    return eval_rows(run, number, judged, silos=silos, scope=scope)


def _everyone(run: Run) -> list[int]:
    return [EVERYBODY, *range(len(run.silos))]


def _digest(adapters: Sequence[Adapter]) -> str:
    """One adapter's identity, or the digest of several; of none that of nothing."""
    found = [identity(adapter) for adapter in adapters]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()
