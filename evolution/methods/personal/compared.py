"""Which adapters a silo may use, and what comparing them on its own tasks came to. No torch.

============  ================================================  ==================================
candidate     what plays                                        of the silo's own
============  ================================================  ==================================
shared        the federation's adapter θ                        0
interpolated  (1 − w)·θ + w·own, as changes of the weights      w of ``WEIGHTS``
own           the silo's personal adapter                       1
base          the base model                                    –
============  ================================================  ==================================

The rule. All play the same tasks with the same draws. Of n tasks a candidate alone solves b, and
the shared adapter alone c: the paired difference is (b − c)/n, and its standard error
√(((b + c) − (b − c)²/n) / (n(n − 1))) (A. Agresti, Categorical Data Analysis, 3rd ed., §11.1.1,
with n − 1). Better by more than one standard error is the same as ``b > c and (b − c)² > b + c``,
which needs whole numbers alone (McNemar's statistic above 1). Of those that are better the one with
the largest difference is taken, and of equal ones the first in the table above. Where none is, the
shared adapter stays: nobody changes without a reason.

Invariants:

1. The choice is a function of counts, so it is the same wherever it is read again.
2. A tie, and a difference within one standard error, keep the shared adapter.
3. Families are compared apart. Their sums are the comparison for whoever serves one adapter alone.

Covered: the candidates, the rule, the rows of ``choice.jsonl``. Not covered: that the largest of
several differences is partly luck, with five candidates more so than with one: what was chosen is
judged on tasks that had no part in the choice. Playing (``choice.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeGuard

__all__ = [
    "CANDIDATES",
    "SHARED",
    "TRAINED_APART",
    "WEIGHTS",
    "Candidate",
    "CandidateKind",
    "Choice",
    "Choices",
    "Compared",
    "PersonalKind",
    "choice_of",
]

PersonalKind = Literal["off", "ditto", "finetune", "residual", "fedsa"]
"""Which adapter of its own a silo keeps (``personal.py``)."""
TRAINED_APART: Final[tuple[PersonalKind, ...]] = ("ditto", "finetune", "residual")
"""Of these, those trained after the round's own work, beside the shared one."""
WEIGHTS: Final = (0.25, 0.5, 0.75)
"""Of the silo's own adapter in an interpolation. Few: each is one more try at being lucky."""
CandidateKind = Literal["shared", "interpolated", "own", "base"]
_MAX_TASKS: Final = 1 << 31
_MAX_NAMES: Final = 1024
_MAX_NAME_CHARS: Final = 200
_SHA256_CHARS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An adapter that a silo may use."""

    kind: CandidateKind
    weight: float
    """Of the silo's own adapter; 0 of the shared one and of the base."""

    @property
    def words(self) -> str:
        """For people."""
        if self.kind == "interpolated":
            share = 100 * self.weight
            return f"{share:g} % of this silo's own adapter and {100 - share:g} % of the shared one"
        return {
            "shared": "the shared adapter",
            "own": "this silo's own adapter",
            "base": "the base model without an adapter",
        }[self.kind]


SHARED: Final = Candidate(kind="shared", weight=0.0)
CANDIDATES: Final = (
    *(Candidate(kind="interpolated", weight=weight) for weight in WEIGHTS),
    Candidate(kind="own", weight=1.0),
    Candidate(kind="base", weight=0.0),
)
"""What is compared with the shared adapter; of equals the first is taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A candidate beside the shared adapter, on the same tasks."""

    candidate: Candidate
    tasks: int
    """That both finished, n."""
    gained: int
    """Solved by the candidate alone, b."""
    lost: int
    """Solved by the shared adapter alone, c."""

    @property
    def difference(self) -> float:
        """Of the shares of solved tasks, the candidate's less the shared adapter's."""
        return (self.gained - self.lost) / self.tasks if self.tasks else 0.0

    @property
    def standard_error(self) -> float:
        """Of the difference; infinite where a single task, or none, says nothing about it."""
        n, b, c = self.tasks, self.gained, self.lost
        if n <= 1:
            return math.inf
        return math.sqrt(((b + c) - (b - c) ** 2 / n) / (n * (n - 1)))

    @property
    def better(self) -> bool:
        """Whether the difference is above zero by more than one standard error."""
        return self.gained > self.lost and (self.gained - self.lost) ** 2 > self.gained + self.lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the candidates came to on some tasks."""

    compared: tuple[Compared, ...]
    """One for each of ``CANDIDATES``, in their order."""

    @property
    def best(self) -> Compared | None:
        """The candidate to use in the place of the shared adapter; None keeps that one."""
        better = [one for one in self.compared if one.better]
        return max(better, key=lambda one: one.difference, default=None)

    @property
    def nearest(self) -> Compared:
        """Of those that are not better, the one with the largest difference."""
        return max(self.compared, key=lambda one: one.difference)

    @property
    def chosen(self) -> Candidate:
        """What to use."""
        return SHARED if self.best is None else self.best.candidate

    def __add__(self, other: Choice) -> Choice:
        return Choice(
            compared=tuple(
                Compared(
                    candidate=one.candidate,
                    tasks=one.tasks + two.tasks,
                    gained=one.gained + two.gained,
                    lost=one.lost + two.lost,
                )
                for one, two in zip(self.compared, other.compared, strict=True)
            )
        )

    def row(self) -> list[dict[str, Any]]:
        """For the file."""
        return [
            {
                "candidate": one.candidate.kind,
                "weight": one.candidate.weight,
                "tasks": one.tasks,
                "gained": one.gained,
                "lost": one.lost,
            }
            for one in self.compared
        ]

    @classmethod
    def of(cls, row: Any) -> Self:
        """What a row says.

        Raises:
            ValueError: It is none.
        """
        if not isinstance(row, list) or len(row) != len(CANDIDATES):
            raise ValueError("a comparison has one entry for each candidate")
        return cls(compared=tuple(map(_compared, row, CANDIDATES)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What a silo chose, family by family."""

    families: Mapping[str, Choice]
    """By public family; those without a task to choose by are there too."""
    members: Mapping[str, str]
    """Each environment's family."""
    own_sha256: str = ""
    """Of the silo's own adapter in published form, which played; hexadecimal, empty if unknown."""

    @property
    def overall(self) -> Choice:
        """All families together: for whoever serves one adapter alone."""
        return sum(self.families.values(), _NOTHING)

    def chosen_in(self, environment: str) -> Candidate:
        """What to use in an environment: in one that is not the silo's own, the shared adapter."""
        family = self.members.get(environment)
        return SHARED if family is None else self.families[family].chosen

    def row(self) -> dict[str, Any]:
        """For the file."""
        return {
            "families": {name: choice.row() for name, choice in self.families.items()},
            "members": dict(self.members),
            "own_sha256": self.own_sha256,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """What a row says.

        Raises:
            ValueError: It is none.
        """
        families, members = row.get("families"), row.get("members")
        if not (_is_named(families) and _is_named(members)):
            raise ValueError("a choice names its families and its environments")
        if not all(isinstance(one, str) and one in families for one in members.values()):
            raise ValueError("an environment is of a family that nothing was chosen for")
        own = row.get("own_sha256", "")
        if not isinstance(own, str) or len(own) > _SHA256_CHARS:
            raise ValueError("a choice names the silo's own adapter by its SHA-256")
        return cls(
            families={name: Choice.of(choice) for name, choice in families.items()},
            members=dict(members),
            own_sha256=own,
        )


def choice_of(solved: Mapping[Candidate, Sequence[bool | None]]) -> Choice:
    """Compare outcomes, task by task in one order; None is a task that was not finished.

    ``solved`` has every candidate, and the shared adapter.
    """
    shared = solved[SHARED]
    compared = []
    for candidate in CANDIDATES:
        pairs = [
            (one, base)
            for one, base in zip(solved[candidate], shared, strict=True)
            if one is not None and base is not None
        ]
        compared.append(
            Compared(
                candidate=candidate,
                tasks=len(pairs),
                gained=pairs.count((True, False)),
                lost=pairs.count((False, True)),
            )
        )
    return Choice(compared=tuple(compared))


def _compared(row: Any, candidate: Candidate) -> Compared:
    if not isinstance(row, dict) or (row.get("candidate"), row.get("weight")) != (
        candidate.kind,
        candidate.weight,
    ):
        raise ValueError(f"a comparison's entry is not that of {candidate.words}")
    tasks, gained, lost = (row.get(key) for key in ("tasks", "gained", "lost"))
    if not all(type(count) is int and 0 <= count <= _MAX_TASKS for count in (tasks, gained, lost)):
        raise ValueError("a comparison's counts are not whole numbers from 0")
    found = Compared(candidate=candidate, tasks=tasks, gained=gained, lost=lost)  # type: ignore[arg-type]  # whole numbers, as above
    if found.gained + found.lost > found.tasks:
        raise ValueError("a comparison has more tasks told apart than played")
    return found


def _is_named(table: Any) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(table, dict)
        and len(table) <= _MAX_NAMES
        and all(
            isinstance(name, str) and name.isprintable() and len(name) <= _MAX_NAME_CHARS
            for name in table
        )
    )


_NOTHING: Final = Choice(
    compared=tuple(Compared(candidate=one, tasks=0, gained=0, lost=0) for one in CANDIDATES)
)
