"""What a model may propose for a round, and the judge of what it answered.

A proposal is a suggestion of how a round is asked: how many silos or which, how long they have, how
many local epochs, whether to stop, whether to diagnose, and one line why. ``Limits`` says which of
these may be said at all and within what; a key that may not be said may only be left out, null,
false, or say what holds anyway (everybody).

Ordered checks of an answer: size, nesting and JSON (``strict_json``); one object with no key but
the seven; types, where a float or a truth value is no integer; who is asked; the ranges; what may
not be proposed; the reason. The first that fails is told in one of the texts below, with numbers of
the limits and nothing of the answer, so that it may be shown, logged, and sent back to the model.

An answer in a code fence, or with words around the object, is refused like any other that is not
JSON, and the text says so: taking out what looks like an object would be a second, lenient parser
that two readers could disagree about.

Covered: answers of any bytes. Not covered: whether a proposal is wise; what the limits are, which
whoever asks computes from plan, quorum and who is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from federation.advice.strict_json import JsonFault, JsonFaultError, read_json
from federation.errors import AdviceError
from federation.text import printable
from secagg import bounds
from secagg.errors import MalformedMessageError

__all__ = [
    "MAX_ANSWER_BYTES",
    "MAX_REASON_CHARS",
    "Closed",
    "Limits",
    "Problem",
    "Proposal",
    "SiloId",
    "judge",
    "schema",
]

MAX_ANSWER_BYTES: Final = 16 << 10
MAX_ANSWER_DEPTH: Final = 4
MAX_REASON_CHARS: Final = 500
MAX_SECONDS: Final = 10_000_000
MAX_EPOCHS: Final = 1000
_KEYS: Final = (
    "reason",
    "count",
    "silos",
    "ready_deadline_s",
    "local_epochs",
    "stop",
    "diagnose",
)


class Closed(BaseModel):
    """A table of this room: frozen, strict, closed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


SiloId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
"""As ``secagg.bounds.require_silo_id``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Within what a proposal has to be."""

    may_choose: bool
    """Whether fewer may be asked than are there."""
    names_silos: bool
    """Whether the model names silos by public id; otherwise it says how many, and a policy draws
    them."""
    least: int
    """Fewest silos of a round's sums."""
    alive: tuple[SiloId, ...]
    """Public ids of those who are there, in ascending order."""
    ready_deadline_s: tuple[int, int] | None
    """Least and most; None where it may not move."""
    local_epochs: tuple[int, int] | None
    """Least and most; None where it may not move."""
    may_stop: bool
    may_diagnose: bool

    def __post_init__(self) -> None:
        """Refuse limits that are none.

        Raises:
            AdviceError: A value is out of bounds.
        """
        flags = (self.may_choose, self.names_silos, self.may_stop, self.may_diagnose)
        if any(type(flag) is not bool for flag in flags):
            raise AdviceError("what may be proposed is true or false")
        try:
            bounds.require_sequence(self.alive, str, 1, bounds.MAX_COHORT, "alive")
            for silo_id in self.alive:
                bounds.require_silo_id(silo_id, "alive")
            bounds.require_integer(self.least, 1, len(self.alive), "least")
        except MalformedMessageError as error:
            raise AdviceError(str(error)) from None
        if not bounds.is_strictly_sorted(self.alive):
            raise AdviceError("alive are not in ascending order without repeats")
        _require_range(self.ready_deadline_s, MAX_SECONDS, "ready_deadline_s")
        _require_range(self.local_epochs, MAX_EPOCHS, "local_epochs")


class Proposal(Closed):
    """What a model proposes, within some limits."""

    count: Annotated[int, Field(ge=1, le=bounds.MAX_COHORT)] | None = None
    """How many silos; None for whatever holds without a proposal, or where ``silos`` says it."""
    silos: (
        Annotated[tuple[SiloId, ...], Field(min_length=1, max_length=bounds.MAX_COHORT)] | None
    ) = None
    """Which, in ascending order."""
    ready_deadline_s: Annotated[int, Field(ge=1, le=MAX_SECONDS)] | None = None
    local_epochs: Annotated[int, Field(ge=1, le=MAX_EPOCHS)] | None = None
    stop: bool = False
    """Whether the run should be paused after this round, for an admin to say what follows."""
    diagnose: bool = False
    """Whether the silos should be asked to diagnose themselves."""
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS)]
    """One printable line of the model's own: for people, and never acted upon."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Why an answer is no proposal."""

    reason: str
    """One of this module's texts."""


def schema(limits: Limits) -> dict[str, Any]:
    """The JSON schema of answers within the limits, with the keys that may be said alone.

    The reason comes first: a model that is held to the schema then says why before it decides. That
    ids differ is not in it, as common servers refuse schemas that say so.
    """
    properties: dict[str, Any] = {
        "reason": {"type": "string", "minLength": 1, "maxLength": MAX_REASON_CHARS}
    }
    if limits.may_choose and limits.names_silos:
        properties["silos"] = {
            "type": "array",
            "items": {"type": "string", "enum": list(limits.alive)},
            "minItems": limits.least,
            "maxItems": len(limits.alive),
        }
    elif limits.may_choose:
        properties["count"] = _integer((limits.least, len(limits.alive)))
    if limits.ready_deadline_s is not None:
        properties["ready_deadline_s"] = _integer(limits.ready_deadline_s)
    if limits.local_epochs is not None:
        properties["local_epochs"] = _integer(limits.local_epochs)
    if limits.may_stop:
        properties["stop"] = {"type": "boolean"}
    if limits.may_diagnose:
        properties["diagnose"] = {"type": "boolean"}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def judge(answer: str, limits: Limits) -> Proposal | Problem:
    """Take an answer as a proposal, or say why it is none."""
    if len(answer) > MAX_ANSWER_BYTES:
        return Problem(reason=_fault(JsonFault.TOO_LONG))
    try:
        # A lone surrogate, which a JSON escape can make, is no text of the answer's.
        content = answer.encode("utf-8")
        said = read_json(content, max_bytes=MAX_ANSWER_BYTES, max_depth=MAX_ANSWER_DEPTH)
    except UnicodeEncodeError:
        return Problem(reason=_fault(JsonFault.NOT_UTF8))
    except JsonFaultError as error:
        return Problem(reason=_fault(error.fault))
    if not isinstance(said, dict):
        return Problem(reason="the answer is not one JSON object")
    # null says nothing, as a key that is left out.
    given = {key: value for key, value in said.items() if value is not None}
    problem = next(_problems(said, given, limits), None)
    if problem is not None:
        return Problem(reason=problem)
    silos = given.get("silos")
    return Proposal(
        count=given.get("count"),
        silos=None if silos is None else tuple(sorted(silos)),
        ready_deadline_s=given.get("ready_deadline_s"),
        local_epochs=given.get("local_epochs"),
        stop=given.get("stop", False),
        diagnose=given.get("diagnose", False),
        reason=_one_line(given["reason"]),
    )


def _problems(said: Mapping[str, Any], given: Mapping[str, Any], limits: Limits) -> Iterator[str]:
    """Everything wrong, in the order of the checks; later ones rest on earlier ones."""
    if not said.keys() <= set(_KEYS):
        yield f"a key is unknown: the keys are {', '.join(schema(limits)['properties'])}"
    yield from _mistyped(given)
    if "silos" in given:
        yield from _named(given["silos"], limits)
    if "count" in given:
        yield from _counted(given["count"], given.get("silos"), limits)
    yield from _within(given.get("ready_deadline_s"), limits.ready_deadline_s, "ready_deadline_s")
    yield from _within(given.get("local_epochs"), limits.local_epochs, "local_epochs")
    if given.get("stop") and not limits.may_stop:
        yield "stop may not be proposed here"
    if given.get("diagnose") and not limits.may_diagnose:
        yield "diagnose may not be proposed here"
    if not 0 < len(_one_line(given["reason"])) <= MAX_REASON_CHARS:
        yield f"reason does not have 1 to {MAX_REASON_CHARS} characters"


def _mistyped(given: Mapping[str, Any]) -> Iterator[str]:
    for key in ("count", "ready_deadline_s", "local_epochs"):
        if key in given and type(given[key]) is not int:
            yield f"{key} is not an integer"
    for key in ("stop", "diagnose"):
        if key in given and type(given[key]) is not bool:
            yield f"{key} is not true or false"
    silos = given.get("silos", [])
    if type(silos) is not list or any(type(silo_id) is not str for silo_id in silos):
        yield "silos is not a list of ids"
    if type(given.get("reason")) is not str:
        yield "reason is missing or not a text"


def _named(silos: list[str], limits: Limits) -> Iterator[str]:
    there = len(limits.alive)
    if not limits.names_silos:
        yield "silos may not be named here: say count"
    if not set(silos) <= set(limits.alive):
        yield "silos names somebody who is not there"
    if len(set(silos)) != len(silos):
        yield "silos names somebody twice"
    if not limits.may_choose and len(silos) != there:
        yield f"fewer than all {there} silos may not be asked here: leave silos out"
    if len(silos) < limits.least:
        yield f"silos names too few: a round needs {limits.least} to {there}"


def _counted(count: int, silos: list[str] | None, limits: Limits) -> Iterator[str]:
    there = len(limits.alive)
    if not limits.may_choose and count != there:
        yield f"fewer than all {there} silos may not be asked here: leave count out"
    if not limits.least <= count <= there:
        yield f"count is not within {limits.least} to {there}"
    if silos is not None and count != len(silos):
        yield "count is not the number of silos"
    if limits.names_silos and silos is None and count != there:
        yield "count alone says not who is asked: name them in silos"


def _within(value: int | None, limit: tuple[int, int] | None, key: str) -> Iterator[str]:
    if value is None:
        return
    if limit is None:
        yield f"{key} may not be moved here: leave it out"
    elif not limit[0] <= value <= limit[1]:
        yield f"{key} is not within {limit[0]} to {limit[1]}"


def _fault(fault: JsonFault) -> str:
    if fault is JsonFault.TOO_LONG:
        return f"the answer {fault}: at most {MAX_ANSWER_BYTES} bytes"
    if fault is JsonFault.NOT_JSON:
        return f"the answer {fault}: one JSON object, without code fences or words around it"
    return f"the answer {fault}"


def _one_line(text: str) -> str:
    return printable(text).strip()


def _integer(limit: tuple[int, int]) -> dict[str, Any]:
    return {"type": "integer", "minimum": limit[0], "maximum": limit[1]}


def _require_range(limit: tuple[int, int] | None, most: int, name: str) -> None:
    if limit is None:
        return
    try:
        bounds.require_sequence(limit, int, 2, 2, name)
        bounds.require_integer(limit[0], 1, most, name)
        bounds.require_integer(limit[1], limit[0], most, name)
    except MalformedMessageError as error:
        raise AdviceError(str(error)) from None
