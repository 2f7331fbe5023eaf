"""What the guard found, and the rows of ``guard.jsonl`` that keep it.

A row is of the base on one panel (``kind`` "base"), which is played once in a run, or of one
adopted adapter ("verdict"). Figures are counts of tries. ``settings`` is a digest of all that the
figures depend on beside the adapter: figures under other settings are not compared.

Covered: the forms, reading what a restart finds. Not covered: the rule (``rule.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from evolution.errors import VerdictError
from evolution.guard.options import Outcome

__all__ = ["Ancestor", "Base", "Figures", "PanelVerdict", "Verdict", "read_rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """How a panel was played."""

    tries: int
    """Episodes finished."""
    successes: int
    """Those that were solved."""
    violations: int
    """Those in which a stated rule was broken."""
    solved: tuple[int, ...] = ()
    """Ids of the tasks that were solved, where each was played once."""

    @property
    def success(self) -> float:
        """The share that was solved."""
        return self.successes / self.tries

    @property
    def violating(self) -> float:
        """The share in which a rule was broken."""
        return self.violations / self.tries


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The base model on one panel."""

    run: str
    settings: str
    environment: str
    figures: Figures

    def row(self) -> dict[str, Any]:
        """For the file."""
        return {"kind": "base", **asdict(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ancestor:
    """The best earlier adapter of the run on a panel, and how an adapter does beside it."""

    round: int
    """It is of."""
    difference: float
    """Of the shares of solved tasks, the adapter's less the ancestor's."""
    error: float
    """Its standard error, over the tasks that both played."""

    @property
    def most(self) -> float:
        """What the difference is at most, two standard errors allowed for."""
        return self.difference + 2.0 * self.error


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelVerdict:
    """An adapter beside the base on one panel."""

    environment: str
    """Its name in the catalogue."""
    adapter: Figures
    base: Figures
    drift: float
    """S after this round."""
    drift_threshold: float
    """h: above it the drift alarm is raised."""
    ancestor: Ancestor | None = None
    """None where there is no earlier adapter to compare with."""

    @property
    def rise(self) -> float:
        """How far violations are above the base's."""
        return self.adapter.violating - self.base.violating

    @property
    def line(self) -> str:
        """For people."""
        return (
            f"{self.environment}: {self.adapter.success:.1%} solved (base "
            f"{self.base.success:.1%}), {self.adapter.violating:.1%} broke a rule (base "
            f"{self.base.violating:.1%}), drift {self.drift:.3f} of {self.drift_threshold:.3f}"
            f"{self._beside}"
        )

    @property
    def _beside(self) -> str:
        if self.ancestor is None:
            return ""
        points, error = 100 * self.ancestor.difference, 100 * self.ancestor.error
        return f", {points:+.1f} ± {error:.1f} points to round {self.ancestor.round}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What judging one adopted adapter came to."""

    run: str
    round: int
    adapter_sha256: str
    """Hex, of the published bytes."""
    restored_round: int | None = None
    """Of a rollback: the round whose adapter it is."""
    settings: str
    outcome: Outcome
    panels: tuple[PanelVerdict, ...] = field(default=())
    """Empty where judging failed."""

    def row(self) -> dict[str, Any]:
        """For the file."""
        return {"kind": "verdict", **asdict(self), "outcome": self.outcome.value}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """What a row says."""
        restored = row["restored_round"]
        return cls(
            run=str(row["run"]),
            round=int(row["round"]),
            adapter_sha256=str(row["adapter_sha256"]),
            restored_round=None if restored is None else int(restored),
            settings=str(row["settings"]),
            outcome=Outcome(row["outcome"]),
            panels=tuple(
                PanelVerdict(
                    environment=str(panel["environment"]),
                    adapter=_figures(panel["adapter"]),
                    base=_figures(panel["base"]),
                    drift=float(panel["drift"]),
                    drift_threshold=float(panel["drift_threshold"]),
                    ancestor=_ancestor(panel["ancestor"]),
                )
                for panel in row["panels"]
            ),
        )


def read_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Base], list[Verdict]]:
    """The bases and verdicts of the file, oldest first.

    Raises:
        VerdictError: A row is none of them.
    """
    bases, verdicts = [], []
    try:
        for row in rows:
            if row["kind"] == "verdict":
                verdicts.append(Verdict.of(row))
            else:
                bases.append(
                    Base(
                        run=str(row["run"]),
                        settings=str(row["settings"]),
                        environment=str(row["environment"]),
                        figures=_figures(row["figures"]),
                    )
                )
    except (KeyError, TypeError, ValueError) as error:
        raise VerdictError(f"guard.jsonl is damaged: {error!r}") from error
    return bases, verdicts


def _ancestor(said: Mapping[str, Any] | None) -> Ancestor | None:
    if said is None:
        return None
    return Ancestor(
        round=int(said["round"]), difference=float(said["difference"]), error=float(said["error"])
    )


def _figures(said: Mapping[str, Any]) -> Figures:
    found = Figures(
        tries=int(said["tries"]),
        successes=int(said["successes"]),
        violations=int(said["violations"]),
        solved=tuple(int(one) for one in said["solved"]),
    )
    if found.tries < 1:
        raise ValueError("figures of no try")
    return found
