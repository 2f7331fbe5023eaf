"""One round's decision out of all that it follows from, so that a record of that gives it again.

``Inputs`` is everything that a policy is told, as JSON in and out. Without an advisor the plan's
policy decides. With one (policy ``advised``) its proposal, if there is one, says K or the silos and
moves the round within the plan's ranges; a K is filled by the policy ``then``, which also decides
where there is no proposal.

Ordered invariants:

1. ``decide`` is a function of the inputs and the proposal alone: no clock, no state; its random
   numbers follow from run, round and plan (``public_draw``).
2. A proposal that its limits do not allow changes nothing: it is none (``federation/advice``).

Covered: the coordinator (``server/run/selection.py``), and whoever decides again what it recorded.
Not covered: whether what was recorded is what there was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from federation.advice.proposal import Proposal
from federation.errors import AdviceError
from federation.plan.tables import SelectionAdviceSection, SelectionSection
from federation.selection.by_facts import Oort, PowerOfChoice
from federation.selection.policies import (
    All,
    Choice,
    PublicFacts,
    PublicHistory,
    RandomDraw,
    RoundRobin,
    SelectionPolicy,
)
from secagg import canonical

__all__ = ["ADVISED", "POLICIES", "Inputs", "decide", "policy_of", "public_draw"]

ADVISED: Final = "advised"
MAX_INPUTS_BYTES: Final = 1 << 20
SELECTION_DOMAIN: Final = "chorale/v2/selection"

POLICIES: Final[Mapping[str, type[SelectionPolicy]]] = MappingProxyType(
    {policy.name: policy for policy in (All, RandomDraw, RoundRobin, PowerOfChoice, Oort)}
)
"""Every policy that decides alone, by the name that plans have for it."""

_STRICT: Final = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, slots=True, config=_STRICT)
class Inputs:
    """What one decision follows from, but for a proposal."""

    run_id: Annotated[str, Field(max_length=128)]
    plan_sha256: str
    """In hexadecimal."""
    section: SelectionSection
    """The plan's ``[selection]``."""
    at_least: int
    """Silos without whom the sums of a round cannot be made."""
    live: dict[str, PublicFacts]
    """Who is there and may be asked."""
    past: PublicHistory
    """The run so far, and which round this is."""

    def to_json(self) -> bytes:
        """For the store; at most a mebibyte."""
        return _INPUTS.dump_json(self)

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read back what ``to_json`` wrote.

        Raises:
            AdviceError: It is something else, or too large.
        """
        if len(content) > MAX_INPUTS_BYTES:
            raise AdviceError(f"a decision's inputs have {len(content)} bytes")
        try:
            return _INPUTS.validate_json(content)  # type: ignore[return-value]
        except ValidationError as error:
            raise AdviceError(
                f"a decision's inputs are malformed: {error.error_count()} problems"
            ) from error


_INPUTS: Final[TypeAdapter[Inputs]] = TypeAdapter(Inputs)


def public_draw(run_id: str, round_number: int, plan_sha256: bytes) -> Random:
    """The random numbers of a round's choice, which anybody can make again."""
    seed = canonical.digest(SELECTION_DOMAIN, run_id, round_number, plan_sha256)
    # Public on purpose: nothing is hidden by it, and it must come out the same again.
    return Random(int.from_bytes(seed, "big"))  # noqa: S311


def policy_of(section: SelectionSection) -> SelectionPolicy:
    """The policy that decides where no advisor does: the plan's own, or the advised one's ``then``.

    Rounds of an advised plan without a count ask everybody.
    """
    name: str = section.policy
    given = section.model_dump(exclude_none=True)
    if name == ADVISED:
        name = (section.advice or SelectionAdviceSection()).then if section.varies else All.name
    made = POLICIES[name]
    options = made.options.model_fields
    return made(made.options.model_validate({k: v for k, v in given.items() if k in options}))


async def decide(inputs: Inputs, proposal: Proposal | None = None, without: str = "") -> Choice:
    """The choice, before it is checked against the plan.

    ``without`` says in one public line why an advised round has no proposal.
    """
    past, section = inputs.past, inputs.section
    rng = public_draw(inputs.run_id, past.number, bytes.fromhex(inputs.plan_sha256))
    if proposal is None:
        choice = await _picked(inputs, section, rng)
        return replace(choice, why=f"no advice ({without}): {choice.why}") if without else choice
    if proposal.silos is not None:
        silos = tuple(sorted(proposal.silos))
        choice = Choice(silos=silos, why=f"{len(silos)} of {len(inputs.live)} by name")
    elif proposal.count is not None and section.varies:
        asked = {"count": proposal.count, "schedule": None}
        choice = await _picked(inputs, section.model_copy(update=asked), rng)
    else:
        choice = await _picked(inputs, section, rng)
    return replace(
        choice,
        why=f"advised: {choice.why}",
        ready_deadline_s=proposal.ready_deadline_s,
        local_epochs=proposal.local_epochs,
        stop=proposal.stop,
        diagnose=proposal.diagnose,
    )


async def _picked(inputs: Inputs, section: SelectionSection, rng: Random) -> Choice:
    return await policy_of(section).choose(
        inputs.live, inputs.past, at_least=inputs.at_least, rng=rng
    )
