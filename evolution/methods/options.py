"""What a silo chooses by itself for any recipe, from ``[evolve]`` of its ``silo.toml``.

Invariants: an option of the wrong type or range, one that nothing knows and one that would have no
effect are refused; none of them can come from a plan. What decides the sum and must be equal on all
silos is no option: it is the plan's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self, cast, get_args

from pydantic import Field

from dp.config import DEFAULT_BACKEND
from dp.steps.backends import BACKENDS
from evolution.errors import EvolverSetupError
from evolution.methods.evolver import EvolverSetup
from evolution.methods.personal.compared import TRAINED_APART, PersonalKind
from evolution.methods.protection import protected, require_setup_apart

__all__ = ["RecipeOptions"]

BackendName = Literal["fixed", "loop", "hooks", "functorch"]
_KINDS: tuple[PersonalKind, ...] = get_args(PersonalKind)

Options = Mapping[str, str | int | float]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """See the module; a field's default is the option's."""

    buffer_capacity: Count | None = 20_000
    """Most successes kept. Refused where units are protected, because one task would push out
    another's."""
    buffer_capacity_per_task: Count | None = None
    """Most successes kept of one task; no limit when absent."""
    failure_capacity: Count | None = 20_000
    """Most other tries kept: failures, and successes that were played before. Refused where
    units are protected."""
    failure_capacity_per_task: Count | None = 256
    """Most other tries kept of one task, also where units are protected."""
    memory_max_age_days: Count | None = 365
    """How long anything but a demonstration is kept, from the exploring that it came from."""
    principle_capacity: Count | None = 64
    """Most principles kept of one environment and one subject, where the plan's play keeps some;
    their age is that of the memory."""
    gradient_backend: BackendName = DEFAULT_BACKEND
    """How gradients of single units are computed where units are protected; all give the same to
    rounding, and in ``fixed`` and ``loop`` not a bit depends on other units
    (``dp/steps/fixed.py``)."""
    play: str | None = None
    """The name of a play of the silo's own, with its options as they are, in the place of ``once``,
    if the plan's ``local_parts`` allows one."""
    gate: str | None = None
    """The name of a gate of the silo's own, likewise."""
    personal: PersonalKind = "off"
    """Which adapter of its own the silo keeps, beside the shared one."""
    personal_lambda: Annotated[float, Field(ge=0)] = 0.1
    """Of ``ditto``: λ, how strongly the personal adapter is pulled to the shared one."""
    personal_epochs: Count | None = None
    """Passes of ``ditto``, ``finetune`` and ``residual``; the plan's ``epochs`` when absent."""
    personal_choice: Annotated[int, Field(ge=2)] | None = None
    """Of each environment so many held-out tasks of the silo's own, none of which is judged, tell
    after each judged round which adapter to use: the shared one, its own, between, or none
    (``evolution/methods/personal/compared.py``). Without it nothing is chosen."""

    @classmethod
    def of(cls, setup: EvolverSetup) -> Self:
        """Read and check the options of a set-up.

        Raises:
            EvolverSetupError: An option is unknown, has a value it cannot have, has no effect, or
                couples protected units.
        """
        options = setup.options
        unknown = set(options) - {*cls.__dataclass_fields__}
        if unknown:
            raise EvolverSetupError(f"a recipe has no option {min(unknown)!r}{_moved(unknown)}")
        backend = _one_of(options, "gradient_backend", tuple(BACKENDS))
        require_setup_apart(setup, backend=backend)
        guarded = protected(setup.privacy) is not None
        kind = cast("PersonalKind", _one_of(options, "personal", _KINDS))
        if guarded and kind == "fedsa":
            raise EvolverSetupError(
                "personal 'fedsa' keeps factors that were trained on the data without noise, and "
                "what is uploaded would depend on them beyond what is charged: use 'residual' or "
                "'ditto'"
            )
        for name, kinds in (
            ("personal_lambda", ("ditto",)),
            ("personal_epochs", TRAINED_APART),
            ("personal_choice", TRAINED_APART),
        ):
            if name in options and kind not in kinds:
                raise EvolverSetupError(f"{name} has no effect with personal {kind!r}")
        for part in ("play", "gate"):
            if not isinstance(options.get(part, ""), str):
                raise EvolverSetupError(f"{part} is the name of a {part}, not {options[part]!r}")
        return cls(
            buffer_capacity=None if guarded else _count(options, "buffer_capacity"),
            buffer_capacity_per_task=_count(options, "buffer_capacity_per_task"),
            failure_capacity=None if guarded else _count(options, "failure_capacity"),
            failure_capacity_per_task=_count(options, "failure_capacity_per_task"),
            memory_max_age_days=_count(options, "memory_max_age_days"),
            principle_capacity=_count(options, "principle_capacity"),
            gradient_backend=cast("BackendName", backend),
            play=cast("str | None", options.get("play")),
            gate=cast("str | None", options.get("gate")),
            personal=kind,
            personal_lambda=_lambda(options) if kind == "ditto" else 0.0,
            personal_epochs=_count(options, "personal_epochs"),
            personal_choice=_count(options, "personal_choice", least=2),
        )


def _moved(unknown: set[str]) -> str:
    if "success_filter" not in unknown:
        return ""
    return (
        ": which tries are imitated must be equal on all silos, so a plan says it: "
        'credit = "all-tries" in [evolve.parts]'
    )


def _one_of(options: Options, name: str, known: tuple[str, ...]) -> str:
    value = options.get(name, getattr(RecipeOptions, name))
    if value not in known:
        raise EvolverSetupError(f"there is no {name} {value!r}; known: {', '.join(known)}")
    return str(value)


def _count(options: Options, name: str, *, least: int = 1) -> int | None:
    value = options.get(name, getattr(RecipeOptions, name))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise EvolverSetupError(f"{name} is a whole number from {least}, not {value!r}")
    return value


def _lambda(options: Options) -> float:
    value = options.get("personal_lambda", RecipeOptions.personal_lambda)
    number = math.nan if isinstance(value, bool | str) else float(value)
    if not (math.isfinite(number) and number >= 0):
        raise EvolverSetupError(f"personal_lambda is a number from 0, not {value!r}")
    return number
