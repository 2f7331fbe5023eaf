"""One line of `results.jsonl`, checked and typed.

A line is one JSON object whose `kind` says what it is:

    run     a finished run: one setting at one seed
    round   exploration in one round of a run
    eval    one adapter judged on held-out tasks: one character per task, in the order of the split

Invariants: every value has its declared type and lies within its bounds; numbers are finite; names
are printable and short. Keys beyond the declared ones are ignored, so that a writer may add facts.

Covered: single lines. Not covered: what lines say together (`results.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

__all__ = [
    "MAX_LINE_BYTES",
    "EvalLine",
    "Line",
    "LineError",
    "PanelLine",
    "RoundLine",
    "RunLine",
    "Simulated",
    "parse_line",
]

MAX_LINE_BYTES: Final = 4 << 20
_MAX_NAME: Final = 120
_MAX_COUNT: Final = 1 << 31
_MAX_NUMBER: Final = 1e12
_SHA256: Final = re.compile("[0-9a-f]{64}")
_SCOPES: Final = ("global", "personal", "chosen", "alone")


class LineError(ValueError):
    """The line breaks the contract."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelLine:
    """What tasks of an environment a run was judged on."""

    tasks: int
    """How many."""
    sha256: str
    """Of ids and openings (``lab/experiment/tasks/panels.py``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLine:
    """A run that is done."""

    experiment: str
    """The experiment file's name."""
    setting: str
    """The row of the experiment file."""
    method: str
    """What was run."""
    seed: int
    """Decides everything random."""
    config: Mapping[str, Any]
    """The setting's values."""
    rounds: int
    """How many rounds."""
    wall_s: float
    """Wall time of the run."""
    episodes: int
    """Episodes explored by all silos together."""
    config_sha256: str = ""
    """Identity of the run; empty where the line does not say it."""
    panels: Mapping[str, PanelLine] = field(default_factory=dict)
    """By environment; empty in runs from before panels had digests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """What a round came to in simulated time."""

    asked: int
    """Silos."""
    ready: int
    """Of those, by the deadline."""
    lost: bool
    """Whether there was no sum."""
    seconds: float
    """From the adviser's first request to the round's end."""
    upload_bytes: int
    """Of all silos."""
    download_bytes: int
    """Of all silos."""
    requests: int
    """To the adviser."""
    tokens: int
    """Of those."""
    advised: bool
    """Whether a proposal was taken."""
    liars: int
    """Of those asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundLine:
    """Exploration in one round, over all silos."""

    setting: str
    """The row of the experiment file."""
    method: str
    """What was run."""
    seed: int
    """Of the run."""
    round: int
    """From 1."""
    successes: Mapping[str, int]
    """By family."""
    episodes: Mapping[str, int]
    """By family."""
    wall_s: float
    """Wall time of the round."""
    vetoes: float | None = None
    """The mean over silos as a coordinator reads it, noise included; None where none was summed."""
    restored_round: int | None = None
    """Of a round that a rollback took: the round whose adapter came back."""
    simulated: Simulated | None = None
    """None where rounds take no simulated time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalLine:
    """One adapter judged on the held-out tasks of one label."""

    setting: str
    """The row of the experiment file."""
    method: str
    """What was run."""
    seed: int
    """Of the run."""
    round: int
    """After which round; 0 is before the first."""
    silo: int
    """Whose adapter, or for whom it was judged; -1 for an adapter that belongs to all."""
    scope: Literal["global", "personal", "chosen", "alone"]
    """Which kind of adapter; ``chosen`` is what a silo took by tasks that are not judged."""
    environment: str
    """Where."""
    family: str
    """The environment's family."""
    label: str
    """The group of tasks."""
    own: bool | None
    """The label is in the silo's shard; None for silo -1."""
    same_family: bool | None
    """The environment is of the silo's family; None for silo -1."""
    temperature: float
    """Of sampling; 0 is greedy."""
    outcomes: str
    """``1`` for a success and ``0`` for a failure, one for each task in the order of the split."""


Line = RunLine | RoundLine | EvalLine


def parse_line(text: bytes) -> Line:
    """Read one line.

    Raises:
        LineError: With what is wrong.
    """
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise LineError(f"not a JSON object: {error}") from error
    if not isinstance(content, dict):
        raise LineError("not a JSON object")
    fields = _Fields(content)
    kind = fields.name("kind")
    if kind == "run":
        return _run(fields)
    if kind == "round":
        return _round(fields)
    if kind == "eval":
        return _eval(fields)
    raise LineError(f"kind is {kind!r}, not run, round or eval")


class _Fields:
    """Typed access to a line's values."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def value(self, key: str) -> Any:
        if key not in self._content:
            raise LineError(f"{key} is missing")
        return self._content[key]

    def has(self, key: str) -> bool:
        return self._content.get(key) is not None

    def name(self, key: str, *, empty: bool = False) -> str:
        value = self.value(key)
        if not isinstance(value, str) or len(value) > _MAX_NAME or not value.isprintable():
            raise LineError(f"{key} is not a printable name of at most {_MAX_NAME} characters")
        if not value and not empty:
            raise LineError(f"{key} is empty")
        return value

    def integer(self, key: str, least: int = 0) -> int:
        value = self.value(key)
        if type(value) is not int or not least <= value <= _MAX_COUNT:
            raise LineError(f"{key} is not an integer from {least} to {_MAX_COUNT}")
        return value

    def number(self, key: str) -> float:
        value = self.value(key)
        # NaN and infinities fail the comparison; whole numbers too long for a float do as well.
        if type(value) not in (int, float) or not 0 <= value <= _MAX_NUMBER:
            raise LineError(f"{key} is not a number from 0 to {_MAX_NUMBER:g}")
        return float(value)

    def signed(self, key: str) -> float | None:
        """A number that noise may have made negative; None where there is none."""
        value = self._content.get(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not -_MAX_NUMBER <= value <= _MAX_NUMBER:
            raise LineError(f"{key} is not a number from {-_MAX_NUMBER:g} to {_MAX_NUMBER:g}")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.value(key)
        if value is not None and not isinstance(value, bool):
            raise LineError(f"{key} is not true, false or null")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.value(key)
        if not isinstance(value, dict):
            raise LineError(f"{key} is not an object")
        return value

    def counts(self, key: str) -> Mapping[str, int]:
        fields = _Fields(self.mapping(key))
        return {fields.key(family): fields.integer(family) for family in self.value(key)}

    def sha256(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
            raise LineError(f"{key} is not 64 hexadecimal digits")
        return value

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of an object whose keys are names."""
        return tuple(self.key(key) for key in self._content)

    def key(self, key: str) -> str:
        if not key or len(key) > _MAX_NAME or not key.isprintable():
            raise LineError("a name is not printable or too long")
        return key


def _run(fields: _Fields) -> RunLine:
    return RunLine(
        experiment=fields.name("experiment"),
        setting=fields.name("setting"),
        method=fields.name("method"),
        seed=fields.integer("seed"),
        config=fields.mapping("config"),
        rounds=fields.integer("rounds"),
        wall_s=fields.number("wall_s"),
        episodes=fields.integer("episodes"),
        config_sha256=fields.sha256("config_sha256") if fields.has("config_sha256") else "",
        panels=_panels(_Fields(fields.mapping("panels"))) if fields.has("panels") else {},
    )


def _panels(fields: _Fields) -> Mapping[str, PanelLine]:
    found = {}
    for name in fields.names:
        one = _Fields(fields.mapping(name))
        found[name] = PanelLine(tasks=one.integer("tasks", 1), sha256=one.sha256("sha256"))
    return found


def _round(fields: _Fields) -> RoundLine:
    successes, episodes = fields.counts("successes"), fields.counts("episodes")
    for family, count in successes.items():
        if count > episodes.get(family, 0):
            raise LineError(f"{family[:40]!r} has more successes than episodes")
    told = fields.value("simulated") if fields.has("simulated") else None
    return RoundLine(
        simulated=None if told is None else _simulated(_Fields(fields.mapping("simulated"))),
        setting=fields.name("setting"),
        method=fields.name("method"),
        seed=fields.integer("seed"),
        round=fields.integer("round", 1),
        successes=successes,
        episodes=episodes,
        wall_s=fields.number("wall_s"),
        vetoes=fields.signed("vetoes"),
        restored_round=fields.integer("restored_round") if fields.has("restored_round") else None,
    )


def _simulated(fields: _Fields) -> Simulated:
    lost, advised = fields.flag("lost"), fields.flag("advised")
    asked, ready = fields.integer("asked"), fields.integer("ready")
    if lost is None or advised is None or ready > asked:
        raise LineError("a simulated round does not say who was ready and what came of it")
    return Simulated(
        asked=asked,
        ready=ready,
        lost=lost,
        seconds=fields.number("seconds"),
        upload_bytes=fields.integer("upload_bytes"),
        download_bytes=fields.integer("download_bytes"),
        requests=fields.integer("requests"),
        tokens=fields.integer("tokens"),
        advised=advised,
        liars=fields.integer("liars"),
    )


def _eval(fields: _Fields) -> EvalLine:
    scope = fields.name("scope")
    if scope not in _SCOPES:
        raise LineError(f"scope is {scope!r}, not one of {', '.join(_SCOPES)}")
    silo, own, same = fields.integer("silo", -1), fields.flag("own"), fields.flag("same_family")
    if (own is None) != (silo < 0) or (same is None) != (silo < 0):
        raise LineError("own and same_family are null exactly for silo -1")
    if own and not same:
        raise LineError("a silo's own label is of its family")
    outcomes = fields.value("outcomes")
    if not isinstance(outcomes, str) or not outcomes or not set(outcomes) <= {"0", "1"}:
        raise LineError("outcomes is not a string of 0 and 1 with at least one character")
    return EvalLine(
        setting=fields.name("setting"),
        method=fields.name("method"),
        seed=fields.integer("seed"),
        round=fields.integer("round"),
        silo=silo,
        scope=scope,  # type: ignore[arg-type]  # it is one of the literals
        environment=fields.name("environment"),
        family=fields.name("family"),
        label=fields.name("label", empty=True),
        own=own,
        same_family=same,
        temperature=fields.number("temperature"),
        outcomes=outcomes,
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key appears twice")
    return content


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
