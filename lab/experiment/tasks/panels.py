"""The tasks that adapters are judged on: which ones, for which purpose, and what they are.

A *panel* is those of one environment. Without a purpose they are the first ones of the split. With
one (``[judge] purpose``) held-out tasks are dealt to three purposes: what settings are tuned on,
what is chosen on among them, and what is reported.

An id is no task: in some environments many ids are one and the same (the market has 511 held-out
wishes and 1,008,000 ids). Ids that open alike, and that the environment's expert, where it has one,
solves alike, are one task, and the first of them stands for it. The tasks of a label, in the order
of the split, are dealt three at a time, one to each purpose, in an order that a digest of
environment, label and place decides: permuted blocks, as trials are randomised by
(K. F. Schulz, D. A. Grimes, Lancet 359 (2002) 515).

Invariants:
    1. No task is of two purposes, and none is twice in a panel with a purpose.
    2. Equal environments give equal panels, whatever the run's seed, method and variants are. A
       panel has its labels in turn, as the split has; a shorter one is a prefix of a longer one.
    3. Where the split is large enough, no purpose has one of its first ``LOOKED_AT`` ids, which
       files without a purpose judge on.
    4. Fewer tasks than are asked for are an error, and never a shorter panel.
    5. ``Panel.sha256`` is over environment, ids, instruction and first observation, in their order,
       in the encoding that is signed everywhere else (``secagg/canonical.py``).

Covered: environments whose reset is decided by the id. Not covered: tasks that open alike and have
no expert, or one that ends alike, and go on unlike all the same: they count as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any, Final, Protocol

from evolution.envs.catalogue import Catalogue
from evolution.envs.environment import Environment, SolvesTasks
from evolution.envs.tasks import Split
from evolution.envs.variants.spec import VariantSpec
from evolution.errors import EnvironmentFailureError
from lab.experiment.errors import JudgeError
from lab.experiment.tables import JudgeTable, Purpose
from lab.experiment.tasks.environments import HasSilos, catalogue_of, variants_of
from secagg.canonical import digest

__all__ = [
    "LOOKED_AT",
    "PURPOSES",
    "IsJudged",
    "Opened",
    "Panel",
    "judged_ids",
    "panels_of",
    "unjudged",
]

PURPOSES: Final[tuple[Purpose, ...]] = ("tuning", "choosing", "reporting")
"""In the order in which permutations are counted."""
LOOKED_AT: Final = 100_000
"""As many as ``judge.held_out`` may be."""
_MOST_LOOKED: Final = 16
"""Tasks that are looked at for each that is asked for, before there are too few."""
_PANEL: Final = "chorale/v1/lab-panel"
_PURPOSE: Final = "chorale/v1/lab-purpose"
_TASK: Final = "chorale/v1/lab-task"
_ORDERS: Final = tuple(permutations(PURPOSES))


class IsJudged(HasSilos, Protocol):
    """A run."""

    @property
    def judge(self) -> JudgeTable:
        """On what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """One task as an agent first sees it."""

    task_id: int
    """Of the environment."""
    instruction: str
    """What the agent is told once."""
    observation: str
    """The first one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """The tasks of one environment that adapters are judged on, in the order of the judge."""

    environment: str
    """Where."""
    purpose: Purpose | None
    """What for; None: the first ones of the split."""
    opened: tuple[Opened, ...]
    """Each task."""

    @property
    def sha256(self) -> str:
        """Identity of the panel, 64 hexadecimal digits."""
        tasks = tuple((one.task_id, one.instruction, one.observation) for one in self.opened)
        return digest(_PANEL, self.environment, tasks).hex()

    @property
    def distinct(self) -> int:
        """How many of them open unlike any other."""
        return len({(one.instruction, one.observation) for one in self.opened})

    @property
    def described(self) -> dict[str, Any]:
        """As a run's row has it."""
        return {"tasks": len(self.opened), "sha256": self.sha256}


def judged_ids(run: IsJudged, name: str) -> Sequence[int]:
    """The tasks of an environment that a run may judge on, of which a judgement is a prefix.

    Raises:
        JudgeError: There are not as many for the purpose as are asked for.
        EnvironmentFailureError: The environment cannot be made, or does not begin a task.
    """
    return _judged_ids(catalogue_of(run), run.judge, name)


def unjudged(run: IsJudged) -> Iterator[str]:
    """What a purpose and the environments do not allow each other; nothing without a purpose."""
    if run.judge.purpose is None:
        return
    for name in dict.fromkeys(name for silo in run.silos for name in silo.environments):
        try:
            judged_ids(run, name)
        except (JudgeError, EnvironmentFailureError) as error:
            yield f"judge: {error}"


def panels_of(run: IsJudged) -> tuple[Panel, ...]:
    """The panel of each environment that silos explore, of ``judge.held_out`` tasks.

    Every task is begun once, in the environment as all are judged in it.

    Raises:
        JudgeError: As for ``judged_ids``.
        EnvironmentFailureError: As for ``judged_ids``.
    """
    names = dict.fromkeys(name for silo in run.silos for name in silo.environments)
    variants = variants_of(run, range(len(run.silos)))
    return _panels(catalogue_of(run), run.judge, tuple(names), tuple(variants.items()))


@lru_cache(maxsize=64)
def _panels(
    catalogue: Catalogue,
    judge: JudgeTable,
    names: tuple[str, ...],
    variants: tuple[tuple[str, VariantSpec], ...],
) -> tuple[Panel, ...]:
    """Settings of one file mostly have the same panels, and beginning a task may take long."""
    judged = catalogue.with_variants(dict(variants)).unperturbed()
    panels = []
    for name in names:
        ids = _judged_ids(catalogue, judge, name)[: judge.held_out]
        environment = judged.make(name)
        try:
            opened = tuple(_opened(environment, task_id) for task_id in ids)
        finally:
            environment.close()
        panels.append(Panel(environment=name, purpose=judge.purpose, opened=opened))
    return tuple(panels)


def _judged_ids(catalogue: Catalogue, judge: JudgeTable, name: str) -> Sequence[int]:
    wanted = max(judge.held_out, judge.held_out_other)
    if judge.purpose is not None:
        return _dealt(catalogue, name, judge.purpose, wanted)
    environment = catalogue.make(name)
    try:
        return environment.task_ids(Split(judge.split))[:wanted]
    finally:
        environment.close()


def _opened(environment: Environment, task_id: int) -> Opened:
    observation, _ = environment.reset(task_id)
    return Opened(task_id=task_id, instruction=environment.told, observation=observation)


@lru_cache(maxsize=64)
def _dealt(catalogue: Catalogue, name: str, purpose: Purpose, wanted: int) -> tuple[int, ...]:
    """The first tasks of a purpose, label after label in turn."""
    environment = catalogue.make(name)
    try:
        return _walked(environment, purpose, wanted)
    finally:
        environment.close()


def _walked(environment: Environment, purpose: Purpose, wanted: int) -> tuple[int, ...]:
    ids, labels = environment.task_ids(Split.HELD_OUT), len(environment.labels)
    quotas = [len(range(label, wanted, labels)) for label in range(labels)]
    found: list[list[int]] = [[] for _ in quotas]
    met, seen = [0] * labels, set[bytes]()
    first = -(-LOOKED_AT // labels) * labels
    if len(ids) - first < len(PURPOSES) * LOOKED_AT:
        first = 0
    for task_id in ids[first : first + wanted * _MOST_LOOKED]:
        # As the judge reads it from the id.
        label = task_id % labels
        key = _task(environment, task_id)
        if key in seen:
            continue
        seen.add(key)
        block, place = divmod(met[label], len(PURPOSES))
        met[label] += 1
        if _dealt_order(environment.name, label, block)[place] == purpose:
            found[label].append(task_id)
        if all(len(have) >= quota for have, quota in zip(found, quotas, strict=True)):
            return tuple(found[place % labels][place // labels] for place in range(wanted))
    least = min(len(have) for have in found) * labels
    raise JudgeError(
        f"held_out: {environment.name!r} has too few tasks that are not the same for the purpose "
        f"{purpose!r}: {wanted} are asked for; ask for at most {least}"
    )


def _task(environment: Environment, task_id: int) -> bytes:
    """What makes ids one task: how it opens, without a variant's own line, and how it is solved."""
    observation, _ = environment.reset(task_id)
    opening = environment.instruction, observation
    solution = environment.solve(task_id) if isinstance(environment, SolvesTasks) else ()
    return digest(_TASK, environment.name, *opening, tuple(solution))


def _dealt_order(name: str, label: int, block: int) -> tuple[Purpose, ...]:
    """Which purposes three tasks of a label go to, in their order."""
    drawn = int.from_bytes(digest(_PURPOSE, name, label, block))
    return _ORDERS[drawn % len(_ORDERS)]
