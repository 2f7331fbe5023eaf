"""Counter-offers to a plan, and the one plan that comes of them.

A site whose policy refuses a plan may say under which terms it would take part, as far as the
plan's ``[negotiation]`` lets it move. Each term asks for less of something, or for a later start::

    local_epochs        fewer passes of a round's local work: the fewest of all offers
    start_after_unix_s  a start at a whole minute or later: the latest of all offers
    epsilon_quarters    ε of the run in quarters, at the plan's δ, its spare attempts included: the
                        least of all offers. Every noise of the plan is multiplied by one factor,
                        the least in hundredths that reaches it; clips, rates and rounds stay

Ordered checks of ``amend``: every offer lies inside the plan's ranges; the plan with all terms
together can be honoured; the document was changed in those keys alone.

Invariants:

1. One offer outside the ranges and nothing is amended: the ranges are every site's to judge.
2. What is amended is read before it is handed out, and differs from the plan in ``KEYS`` alone.
3. Everything is a function of the arguments: whoever has plan, offers and time gets the same bytes.

Covered: bounds of an offer, its ranges, the amended document. Not covered: which site makes which
offer (``silo_agent/policy/offers.py``), and whether sites accept what comes of it, which they are
asked (``server/conductor/preflight.py``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from dp.errors import PrivacyError
from federation.errors import ChainError, PlanError, TomlError
from federation.plan.charges import epsilon_of_run, own_unit
from federation.plan.plan import Plan
from federation.plan.read import MAX_PLAN_BYTES, read_plan
from federation.plan.rules import problems_between_tables, problems_of_spec
from federation.plan.tables import MAX_OFFERED_EPSILON, MAX_UNIX_S
from federation.plan.toml import parse_toml

__all__ = [
    "KEYS",
    "MAX_QUARTERS",
    "QUARTERS",
    "Amended",
    "Move",
    "NotAmended",
    "Offer",
    "amend",
    "moment",
    "outside",
    "plan_with",
    "run_epsilon",
]

QUARTERS: Final = 4
"""An offered ε says no more than a quarter of it."""
MAX_QUARTERS: Final = int(MAX_OFFERED_EPSILON) * QUARTERS
MINUTE_S: Final = 60
CLOCK_SKEW_S: Final = 120
"""Clocks of silo and coordinator may differ by this much."""
KEYS: Final = (
    ("evolve", "local_epochs"),
    ("privacy", "noise_multiplier"),
    ("privacy", "metrics_noise_multiplier"),
    ("privacy", "record", "silo_noise_multiplier"),
    ("rounds", "start_after_unix_s"),
)
"""All that an amended plan may say otherwise."""
_MAX_EPOCHS: Final = 100
_HUNDREDTHS: Final = 100
_MAX_FACTOR: Final = 1000 * _HUNDREDTHS
_NUMBER: Final = r"[+-]?[0-9][0-9A-Za-z_.+-]*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """Terms of one silo; what is 0 is not offered."""

    local_epochs: int = 0
    """Most local epochs of a round."""
    start_after_unix_s: int = 0
    """Earliest start, a whole minute."""
    epsilon_quarters: int = 0
    """Most ε of the run, in quarters."""

    def __post_init__(self) -> None:
        """Refuse what is out of bounds, whoever made it."""
        for name, most in (
            ("local_epochs", _MAX_EPOCHS),
            ("start_after_unix_s", MAX_UNIX_S),
            ("epsilon_quarters", MAX_QUARTERS),
        ):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= most:
                raise ChainError(f"an offer's {name} is none")
        if self.start_after_unix_s % MINUTE_S:
            raise ChainError("an offer's start_after_unix_s is no whole minute")
        if not any(self.fields()):
            raise ChainError("an offer offers nothing")

    def fields(self) -> tuple[int, int, int]:
        """What is signed of it."""
        return self.local_epochs, self.start_after_unix_s, self.epsilon_quarters

    def named(self) -> dict[str, int]:
        """What is offered, by name; for logs."""
        names = ("local_epochs", "start_after_unix_s", "epsilon_quarters")
        return {name: value for name, value in zip(names, self.fields(), strict=True) if value}

    @classmethod
    def of(cls, fields: Sequence[int]) -> Self:
        """The offer with these fields.

        Raises:
            ChainError: They are those of none.
            ValueError: They are not as many.
        """
        epochs, start, quarters = fields
        return cls(local_epochs=epochs, start_after_unix_s=start, epsilon_quarters=quarters)

    @classmethod
    def together(cls, offers: Collection[Offer]) -> Self:
        """The terms that every one of them asks for, at least."""
        epochs = [one.local_epochs for one in offers if one.local_epochs]
        quarters = [one.epsilon_quarters for one in offers if one.epsilon_quarters]
        return cls(
            local_epochs=min(epochs, default=0),
            start_after_unix_s=max((one.start_after_unix_s for one in offers), default=0),
            epsilon_quarters=min(quarters, default=0),
        )

    def __str__(self) -> str:
        """For people."""
        said = []
        if self.local_epochs:
            said.append(f"local_epochs = {self.local_epochs}")
        if self.start_after_unix_s:
            said.append(f"start at {moment(self.start_after_unix_s)}")
        if self.epsilon_quarters:
            said.append(f"epsilon {self.epsilon_quarters / QUARTERS:g}")
        return ", ".join(said)


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One key of an amended plan."""

    key: str
    """Its path."""
    before: str
    """What the plan said; empty where it said nothing."""
    after: str
    """What the amended plan says."""

    def __str__(self) -> str:
        """For people."""
        return f"{self.key}: {self.before or 'not set'} -> {self.after}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Amended:
    """One plan for all."""

    plan_toml: bytes
    """The document."""
    moves: tuple[Move, ...]
    """What it says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotAmended:
    """The plan stays as it is."""

    problems: tuple[str, ...]
    """Whose offer lies outside which range, or why no plan comes of them."""


def moment(unix_s: int) -> str:
    """A time for people, in UTC."""
    return f"{datetime.fromtimestamp(unix_s, tz=UTC):%Y-%m-%d %H:%M} UTC"


def outside(plan: Plan, offer: Offer, *, now_unix_s: int) -> tuple[str, ...]:
    """Which ranges of the plan an offer leaves; empty where it lies inside all.

    ``now_unix_s`` is when the offer came.
    """
    return tuple(_outside(plan, offer, now_unix_s))


def _outside(plan: Plan, offer: Offer, now_unix_s: int) -> Iterator[str]:
    ranges = plan.negotiation
    if ranges is None:
        yield "the plan has no [negotiation], and no offers are asked for"
        return
    if epochs := offer.local_epochs:
        least, own = ranges.least_local_epochs, plan.evolve.local_epochs
        if least is None or not least <= epochs < own:
            yield f"local_epochs {epochs} lies outside {_range(least, own)}"
    if start := offer.start_after_unix_s:
        earliest, within_s = plan.rounds.start_after_unix_s or 0, ranges.start_within_s
        if within_s is None:
            yield "the start may not be put off"
        elif not (
            max(earliest, now_unix_s - CLOCK_SKEW_S)
            < start
            <= max(earliest, now_unix_s) + within_s + CLOCK_SKEW_S
        ):
            yield f"start {moment(start)} is not within {within_s} s"
    if offer.epsilon_quarters:
        epsilon, own_epsilon = offer.epsilon_quarters / QUARTERS, run_epsilon(plan)
        least_epsilon = ranges.least_epsilon
        if least_epsilon is None or not least_epsilon <= epsilon < own_epsilon:
            yield f"epsilon {epsilon:g} lies outside {_range(least_epsilon, own_epsilon)}"


def _range(least: float | None, own: float) -> str:
    return "any range: it may not be moved" if least is None else f"{least:g} to below {own:.4g}"


def run_epsilon(plan: Plan) -> float:
    """ε of a run with all its spare attempts, for the unit that the mode protects."""
    return epsilon_of_run(plan)[own_unit(plan.spec)].epsilon


def plan_with(plan: Plan, offer: Offer) -> Plan:
    """The plan with an offer's terms.

    Raises:
        PlanError: It cannot be honoured, or no noise reaches the ε.
    """
    moved = plan
    if offer.local_epochs:
        moved = _set(moved, "evolve", local_epochs=offer.local_epochs)
    if offer.start_after_unix_s:
        moved = _set(moved, "rounds", start_after_unix_s=offer.start_after_unix_s)
    try:
        if offer.epsilon_quarters:
            moved = _noisy_enough(moved, offer.epsilon_quarters / QUARTERS)
        problems = problems_between_tables(moved) or problems_of_spec(moved)
    except PrivacyError as error:
        raise PlanError([f"privacy: {error}"]) from error
    if problems:
        raise PlanError(problems)
    return moved


def _noisy_enough(plan: Plan, epsilon: float) -> Plan:
    """The plan with the least factor on all of its noise that reaches an ε."""

    def reaches(factor: int) -> bool:
        return run_epsilon(_louder(plan, factor)) <= epsilon

    low, high = _HUNDREDTHS - 1, _HUNDREDTHS
    while not reaches(high):
        low, high = high, 2 * high
        if high > _MAX_FACTOR:
            raise PlanError([f"privacy.noise_multiplier: no multiple reaches epsilon {epsilon:g}"])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return _louder(plan, high)


def _louder(plan: Plan, factor: int) -> Plan:
    """All noise times so many hundredths; ten digits, as the document has it."""

    def times(z: float) -> float:
        return z if factor == _HUNDREDTHS else float(f"{z * factor / _HUNDREDTHS:.10g}")

    privacy = plan.privacy
    record = privacy.record
    if record is not None and record.silo_noise_multiplier > 0.0:
        louder = times(record.silo_noise_multiplier)
        record = record.model_copy(update={"silo_noise_multiplier": louder})
    return _set(
        plan,
        "privacy",
        noise_multiplier=times(privacy.noise_multiplier),
        metrics_noise_multiplier=times(privacy.metrics_noise_multiplier),
        record=record,
    )


def _set(plan: Plan, table: str, **values: object) -> Plan:
    # Safety: every value is within the bounds of its key, by those of an offer and of a factor.
    return plan.model_copy(update={table: getattr(plan, table).model_copy(update=values)})


def amend(
    plan_toml: bytes, offers: Mapping[str, Offer], *, now_unix_s: int
) -> Amended | NotAmended:
    """One plan for all who made an offer; ``now_unix_s`` is when the offers came.

    Raises:
        PlanError: The document is no plan.
    """
    plan = read_plan(plan_toml)
    problems = tuple(
        f"{silo_id}: {problem}"
        for silo_id in sorted(offers)
        for problem in outside(plan, offers[silo_id], now_unix_s=now_unix_s)
    )
    if problems or not offers:
        return NotAmended(problems=problems or ("no silo made an offer",))
    try:
        moved = plan_with(plan, Offer.together(offers.values()))
        return _written(plan_toml, plan, moved)
    except PlanError as error:
        return NotAmended(problems=error.problems)


def _written(plan_toml: bytes, plan: Plan, moved: Plan) -> Amended:
    """The document with what was moved, its other lines and comments as they were."""
    document = deepcopy(parse_toml(plan_toml, max_bytes=MAX_PLAN_BYTES))
    text, moves = plan_toml.decode(), []
    for path in KEYS:
        before, after = _value(plan, path), _value(moved, path)
        if before == after or after is None:
            continue
        *tables, key = path
        table = _table(document, tables)
        moves.append(
            Move(
                key=".".join(path),
                before="" if before is None else repr(before),
                after=repr(after),
            )
        )
        table[key] = after
        text = _line_set(text, tables, key, repr(after))
    content = text.encode()
    # However the lines were found: what was written must be what was meant, and nothing else.
    try:
        same = parse_toml(content, max_bytes=MAX_PLAN_BYTES) == document
    except TomlError:
        same = False
    if not same:
        names = ", ".join(move.key for move in moves)
        place = "write each on a line of its own, below the header of its table"
        raise PlanError([f"{names}: cannot be changed in this document: {place}"])
    if read_plan(content).model_dump() != moved.model_dump():
        raise PlanError(["the amended plan reads otherwise than it was meant"])
    return Amended(plan_toml=content, moves=tuple(moves))


def _value(plan: Plan, path: tuple[str, ...]) -> Any:
    value: Any = plan
    for name in path:
        value = None if value is None else getattr(value, name)
    return value


def _table(document: dict[str, Any], names: list[str]) -> dict[str, Any]:
    table = document
    for name in names:
        table = table[name]
    return table


def _line_set(text: str, tables: list[str], key: str, value: str) -> str:
    header = r"^[ \t]*\[[ \t]*" + r"[ \t]*\.[ \t]*".join(tables) + r"[ \t]*\][^\n]*(?:\n|\Z)"
    found = re.search(header, text, re.MULTILINE)
    if found is None:
        return text
    after = re.compile(r"^[ \t]*\[", re.MULTILINE).search(text, found.end())
    end = len(text) if after is None else after.start()
    line = re.compile(rf"^([ \t]*{key}[ \t]*=[ \t]*){_NUMBER}", re.MULTILINE)
    section = text[found.end() : end]
    if line.search(section):
        section = line.sub(lambda match: match[1] + value, section, count=1)
    else:
        section = f"{key} = {value}\n{section}"
    return text[: found.end()] + section + text[end:]
