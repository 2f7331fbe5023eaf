"""One run from its first adapter to its last judgement.

The silos are the product's own: ``evolution.methods`` explores and trains, ``lab.aggregation``
combines, ``dp`` and ``secagg`` make the sums. What is not here is transport, disk and the ledger.

Invariants:
    1. Equal values give equal rows, apart from times; masks do not change a bit of them.
    2. Every silo starts each round from its circle's adapter, bit for bit.
    3. The rows of a run end with its ``run`` row; a run without one is not done.

    4. A run that goes on after a round whose state was kept has the same rows and adapters, bit
       for bit, as one that was never interrupted, as long as versions and machine are the same.

Covered: every method of ``methods.py``. Not covered: writing the state of a run (``state.py``).
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, Final

from dp.noise.share import per_silo_sigma
from evolution.methods.personal.choice import tensors_of
from evolution.methods.personal.compared import Candidate
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from federation.adapter.layout import Layout
from lab.aggregation.aggregation import LabAggregation, make_lab_aggregation
from lab.experiment.attack import AttackedMean
from lab.experiment.config import Run
from lab.experiment.engines.choice import EngineChoice, EngineKind
from lab.experiment.engines.engine import MemberEngine, ProcessEngine
from lab.experiment.engines.stores import STORES, directory_of
from lab.experiment.federation_round import (
    Chosen,
    Circle,
    RoundFigures,
    SharingCircle,
    SoleCircle,
    play_round,
)
from lab.experiment.groups import GroupedSum
from lab.experiment.guards.circle import GuardedCircle, Vetoing
from lab.experiment.guards.silo import is_attacker, served_round
from lab.experiment.guards.vetoes import VetoSum
from lab.experiment.judge import Judge, Judged
from lab.experiment.masked import MaskedSum
from lab.experiment.member import Adapter, identity, personal_of
from lab.experiment.methods import METHODS, clusters
from lab.experiment.orchestration.circle import OrchestratedCircle, Sums
from lab.experiment.participation import taking_part
from lab.experiment.rows import (
    EVERYBODY,
    Row,
    Scope,
    eval_rows,
    families_of,
    round_row,
    run_row,
)
from lab.experiment.state import Kept, RunStates
from lab.experiment.sums import PlainSum, RoundMean
from lab.experiment.tables import GuardTable
from lab.experiment.tasks.environments import catalogue_of
from lab.experiment.tasks.panels import panels_of

__all__ = ["DECISIONS", "Progress", "RunResult", "aggregation_of", "play_run", "versions_of"]

DECISIONS: Final = "decisions.jsonl"
Progress = Callable[[int, RoundFigures, float], None]
"""Called after each round with its number, its figures and its seconds."""
_Verdicts = dict[tuple[str, str, int], list[Judged]]
"""Of one round, by the adapter, the environment and how many of its tasks."""
_ADAPTIVE = frozenset({"fedadagrad", "fedyogi", "fedadam"})
_PROCESS = EngineChoice()
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
    decisions: str = ""
    """A line for each round that chose whom it asks (``federation/selection/decided.py``)."""

    def write_adapters(self, directory: Path) -> None:
        """Keep ``adapter-CIRCLE`` and ``personal-SILO``, as the product publishes an adapter.

        Beside them ``decisions.jsonl``, where there are any. The directory is created if absent.
        """
        directory.mkdir(parents=True, exist_ok=True)
        named = {f"adapter-{index}": adapter for index, adapter in enumerate(self.adapters)}
        named |= {f"personal-{silo}": adapter for silo, adapter in self.personal.items()}
        for name, adapter in named.items():
            (directory / f"{name}.safetensors").write_bytes(encode_adapter(adapter))
        if self.decisions:
            (directory / DECISIONS).write_text(self.decisions)


def aggregation_of(run: Run, adapter: Adapter, *, silos: int) -> LabAggregation:
    """The arithmetic of a federation of so many silos; any adapter of the run gives the shapes.

    Raises:
        ValueError: The method, its optimiser or its options are wrong.
    """
    # FedSA is a method of silo and federation at once: nothing but A may be shared.
    method = "fedsa" if METHODS[run.method].personal == "fedsa" else run.aggregation.method
    return make_lab_aggregation(
        method,
        Layout.from_tensors(dict(adapter)),
        silos=run.per_round or silos,
        of=silos,
        clip_l2=run.noise.clip_l2,
        server_step=run.aggregation.server_step,
        gauge=run.aggregation.gauge,
        server_optimiser=run.aggregation.server_optimiser,
        options={**_noise_variance(run, silos=run.per_round or silos), **run.aggregation.options},
    )


def _noise_variance(run: Run, *, silos: int) -> dict[str, float]:
    """What adaptive server optimisers take off their second moment under noise."""
    if run.noise.z == 0 or run.aggregation.server_optimiser not in _ADAPTIVE:
        return {}
    sigma = per_silo_sigma(run.noise.z, run.noise.grid, t=silos, n_min=silos, c=1)
    unit = run.noise.clip_l2 / run.noise.grid
    return {"noise_variance": (sigma * unit) ** 2 / silos}


def play_run(
    run: Run,
    scratch: Path,
    *,
    progress: Progress,
    states: RunStates | None = None,
    choice: EngineChoice = _PROCESS,
) -> RunResult:
    """Run one setting at one seed, with its members' local work where ``choice`` says.

    The silos' stores are in ``scratch``, an empty directory that the caller removes. Progress is
    told of every round that is played. With ``states`` the run goes on after the newest round whose
    state was kept, and keeps that of each further one before progress is told.

    Raises:
        ExperimentError: It cannot be run as asked, or what was kept of it is damaged.
        ValueError: The aggregation is unknown, or its options are wrong.
    """
    started_s = time.perf_counter()
    stores = scratch / STORES
    at = Kept()
    if states is not None:
        at = states.take_up(stores) or at
    rows, episodes = list(at.rows), at.episodes
    with ExitStack() as stack:
        circles = _circles(run)
        engine = stack.enter_context(closing(_engine(choice, run, scratch, circles)))
        judge = Judge(run, engine=engine.rollout)
        for circle, state in zip(circles, at.circles, strict=bool(at.round)):
            circle.take_up(state)
        if not circles:
            rows += _judge(run, 0, judge, {}, {}, silos=_everyone(run), scope="global")
        for number in range(at.round + 1, run.rounds + 1):
            round_started_s = time.perf_counter()
            figures = play_round(circles, number, engine=engine)
            wall_s = time.perf_counter() - round_started_s
            episodes += figures.episodes.total()
            rows.append(round_row(run, number, figures, wall_s=wall_s))
            rows += _judge_round(run, number, judge, circles, stores=stores)
            if states is not None:
                states.keep(
                    Kept(
                        round=number,
                        rows=rows,
                        episodes=episodes,
                        wall_s=at.wall_s + time.perf_counter() - started_s,
                        circles=[circle.state() for circle in circles],
                    ),
                    stores,
                )
            progress(number, figures, time.perf_counter() - round_started_s)
        for circle in circles:
            if isinstance(circle, GuardedCircle):
                rows += _judge_served(run, judge, circle, engine)
        adapters = [circle.adapter for circle in circles]
        decisions = "".join(circle.decisions() for circle in circles)
        personal = {
            silo: personal_of(run, member, stores, circle.adapter)
            for circle in circles
            for member in circle.members
            for silo in member
            if METHODS[run.method].personal
        }
    rows.append(
        run_row(
            run,
            wall_s=at.wall_s + time.perf_counter() - started_s,
            episodes=episodes,
            adapter_sha256=_digest(adapters),
            versions=versions_of(run),
            panels={panel.environment: panel.described for panel in panels_of(run)},
        )
    )
    return RunResult(rows=rows, adapters=adapters, personal=personal, decisions=decisions)


def versions_of(run: Run) -> dict[str, str]:
    """Of what computes a run: Python, the packages, and those that its environments come from."""
    plugins = {
        point.dist.name: point.dist.version
        for point in entry_points(group="chorale.environments")
        if point.name in run.plugins and point.dist is not None
    }
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
        **dict(sorted(plugins.items())),
    }


def _engine(
    choice: EngineChoice, run: Run, scratch: Path, circles: Sequence[Circle]
) -> MemberEngine:
    """What members work in; its caller closes it."""
    members = run.per_round or sum(len(circle.members) for circle in circles)
    # Without members nobody works but the judge, in this process.
    if choice.kind is EngineKind.PROCESS or not members:
        return ProcessEngine(run, scratch)
    from lab.experiment.engines.ray_engine import RayEngine

    return RayEngine(
        run,
        scratch,
        actors=choice.actors_of(members),
        gpus_per_actor=choice.gpus_per_actor,
    )


def _circles(run: Run) -> list[Circle]:
    method = METHODS[run.method]
    everyone = range(len(run.silos))
    first = initial_adapter(
        run.base,
        run.rank,
        run.alpha,
        run.seed,
        run.target,
        value_head=run.evolve.made.shares_value_head,
    )

    if method.topology == "none":
        return []
    if method.topology == "central":
        return [SoleCircle([tuple(everyone)], first)]
    if method.topology == "alone":
        return [SoleCircle([(index,)], first) for index in everyone]
    if run.orchestration is not None:
        return [OrchestratedCircle(run, first, orchestration=run.orchestration, sums=_sums(run))]
    groups: tuple[tuple[int, ...], ...] = (tuple(everyone),)
    if method.clustered:
        groups = clusters([families_of(run, index) for index in everyone])
    if run.guard is not None:
        return [
            GuardedCircle(
                [(index,) for index in everyone],
                first,
                aggregation=aggregation_of(run, first, silos=len(everyone)),
                mean=_mean(run, tuple(everyone)),
                vetoing=_vetoing(run, run.guard),
            )
        ]
    return [
        SharingCircle(
            [(index,) for index in group],
            first,
            aggregation=aggregation_of(run, first, silos=len(group)),
            mean=_mean(run, group),
            chosen=_chosen(run),
        )
        for group in groups
    ]


def _vetoing(run: Run, guard: GuardTable) -> Vetoing:
    families = {family for index in range(len(run.silos)) for family in families_of(run, index)}
    sums = VetoSum(
        run.noise,
        silos=len(run.silos),
        groups=1 if run.groups is None else run.groups.count,
        families=sorted(families),
        key=(run.seed, "guard"),
    )
    return Vetoing(table=guard, sums=sums, rounds=run.rounds)


def _sums(run: Run) -> Sums:
    """The arithmetic of a round of any number of silos."""
    kind = MaskedSum if run.sums == "masked" else PlainSum

    def of(adapter: Adapter, number: int, silos: int) -> tuple[LabAggregation, RoundMean]:
        mean = kind(run.noise, silos=silos, key=(run.seed, "round", number))
        return aggregation_of(run, adapter, silos=silos), mean

    return of


def _chosen(run: Run) -> Chosen | None:
    """Who takes part in a round, where not all do: there is one circle then."""
    if run.per_round is None:
        return None
    return partial(taking_part, run.seed, silos=len(run.silos), per_round=run.per_round)


def _mean(run: Run, group: tuple[int, ...]) -> RoundMean:
    """How the vectors of these silos, or of those of them that take part, become a mean."""
    kind = MaskedSum if run.sums == "masked" else PlainSum
    silos, key = run.per_round or len(group), (run.seed, *group)
    mean: MaskedSum | PlainSum | GroupedSum = kind(run.noise, silos=silos, key=key)
    if run.groups is not None:
        mean = GroupedSum(kind, run.noise, run.groups, silos=silos, key=key)
    if run.attack is None:
        return mean
    place = [silo.name for silo in run.silos].index(run.attack.silo)
    return AttackedMean(mean, run.attack, place=place, key=key)


def _judge_round(
    run: Run, number: int, judge: Judge, circles: Sequence[Circle], *, stores: Path
) -> list[Row]:
    """Judge what the method's silos would use after this round."""
    method = METHODS[run.method]
    rows: list[Row] = []
    verdicts: _Verdicts = {}
    # Without a silo's own B the shared adapter of FedSA is the base model's function.
    shared = method.topology != "alone" and not method.clustered and method.personal != "fedsa"
    if shared and run.judged_after(number, shared=True):
        adapter = circles[0].adapter
        rows += _judge(run, number, judge, adapter, verdicts, silos=_everyone(run), scope="global")
    if not run.judged_after(number, shared=False):
        return rows
    scope: Scope = "alone" if method.topology == "alone" else "personal"
    for circle in circles if method.clustered or method.topology == "alone" else ():
        silos = [index for member in circle.members for index in member]
        rows += _judge(run, number, judge, circle.adapter, verdicts, silos=silos, scope=scope)
    for circle in circles if method.personal else ():
        for member in circle.members:
            own = personal_of(run, member, stores, circle.adapter)
            rows += _judge(run, number, judge, own, verdicts, silos=member, scope="personal")
            if run.evolve.personal_choice and method.personal == "ditto":
                rows += _judge_chosen(
                    run, number, judge, verdicts, silos=member, shared=circle.adapter, own=own
                )
    return rows


def _judge_chosen(
    run: Run,
    number: int,
    judge: Judge,
    verdicts: _Verdicts,
    *,
    silos: Sequence[int],
    shared: Adapter,
    own: Adapter,
) -> list[Row]:
    """Let a silo choose what it would use in each family, and judge that, family by family."""
    (silo,) = silos
    found = judge.choose(silo, shared=shared, own=own)
    rows: list[Row] = []
    for name in _names(run):
        candidate = found.chosen_in(name)
        rows += _judge(
            run,
            number,
            judge,
            tensors_of(candidate, shared=shared, own=own),
            verdicts,
            silos=silos,
            scope="chosen",
            names=(name,),
            chosen=candidate,
        )
    return rows


def _judge_served(run: Run, judge: Judge, circle: GuardedCircle, engine: MemberEngine) -> list[Row]:
    """Judge what each honest silo serves at the end: what passed last, or the base."""
    for _ in engine.play(circle.last_look(run.rounds)):
        pass  # The verdicts are in the silos' stores.
    rows: list[Row] = []
    verdicts: _Verdicts = {}
    for member in circle.members:
        if is_attacker(run, member[0]):
            continue
        served = served_round(engine.stores.kept / directory_of(member))
        adapter = {} if served is None else circle.adapter_of(served)
        rows += _judge(run, run.rounds, judge, adapter, verdicts, silos=member, scope="personal")
    return rows


def _judge(
    run: Run,
    number: int,
    judge: Judge,
    adapter: Adapter,
    verdicts: _Verdicts,
    *,
    silos: Sequence[int],
    scope: Scope,
    names: Sequence[str] = (),
    chosen: Candidate | None = None,
) -> list[Row]:
    """Judge one adapter: in full in the families of whoever it is for, elsewhere on fewer tasks.

    ``names`` are the environments, all of the run's when empty. What is judged is put into
    ``verdicts``, and not judged again: of a hundred silos those that have not taken part yet have
    one adapter.
    """
    near = frozenset(
        family for silo in silos if silo != EVERYBODY for family in families_of(run, silo)
    )
    held_out = {
        name: run.judge.held_out
        if catalogue_of(run).family(name) in near
        else run.judge.held_out_other
        for name in names or _names(run)
    }
    version_of = identity(adapter) if adapter else "base"
    asked = {name: (version_of, name, count) for name, count in held_out.items()}
    unknown = {name: held_out[name] for name, what in asked.items() if what not in verdicts}
    fresh = judge.judge(version_of, adapter, unknown) if unknown else []
    for name in unknown:
        verdicts[asked[name]] = [one for one in fresh if one.environment == name]
    judged = [one for what in asked.values() for one in verdicts[what]]
    return eval_rows(run, number, judged, silos=silos, scope=scope, chosen=chosen)


def _names(run: Run) -> tuple[str, ...]:
    """The run's environments, each once."""
    return tuple(dict.fromkeys(name for silo in run.silos for name in silo.environments))


def _everyone(run: Run) -> list[int]:
    return [EVERYBODY, *range(len(run.silos))]


def _digest(adapters: Sequence[Adapter]) -> str:
    """One adapter's identity, or the digest of several; of none that of nothing."""
    found = [identity(adapter) for adapter in adapters]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()
