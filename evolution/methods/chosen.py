"""The parts that a recipe runs with here: the plan's, with the silo's own play and gate.

A silo's own stand in ``silo.toml``, where the plan's ``local_parts`` allows it and says nothing of
the kind itself. Sampler, credit and objective are the plan's alone: what a round learns from would
be another thing on each silo.

Invariants: a part that couples or reads more than the set-up's privacy lets it is refused with its
reason; so is a class that says something else than its card, and an objective over whole
mini-batches where the silo's trainer divides them; a package's parts are tried on made-up units
before they run where units are protected (``admission``).

Covered: refusals before anything is explored or charged. Not covered: whether the site allows a
package (``silo_agent/policy/plan.py``).
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from evolution.errors import EvolverSetupError
from evolution.methods.admission import require_apart_parts
from evolution.methods.evolver import EvolverSetup
from evolution.methods.options import RecipeOptions
from evolution.methods.protection import protected
from evolution.part import Part
from federation.errors import UnknownPartError
from federation.plan.methods import PartCard, part_card
from federation.plan.recipe import ChosenPart, refusal

__all__ = ["parts_of"]

_PLAIN: Final = "once"
"""The play of tries without help, in whose place a silo's own may stand."""


def parts_of(setup: EvolverSetup, options: RecipeOptions) -> dict[str, Part]:
    """The recipe's parts by kind, as far as the set-up allows them.

    Raises:
        EvolverSetupError: One cannot be loaded, or does not run under the set-up's privacy.
    """
    chosen = _with_own(setup, options)
    spec = protected(setup.privacy)
    if spec is not None:
        for one in chosen.values():
            if problem := refusal(one.card, spec.mode, spec.unit):
                raise EvolverSetupError(problem)
    parts = {kind: Part(card=one.card, options=one.options) for kind, one in chosen.items()}
    for part in parts.values():
        part.load()
    if "objective" in parts:
        _require_whole(parts["objective"], setup)
    if spec is not None and any(one.package for one in chosen.values()):
        require_apart_parts(parts)
    return parts


def _require_whole(objective: Part, setup: EvolverSetup) -> None:
    """Refuse an objective over whole mini-batches where the set-up divides them."""
    # Safety: an objective has been loaded, and with it torch.
    from evolution.train.loop import require_whole
    from evolution.train.objective import Batchwise

    if issubclass(objective.load(), Batchwise):
        require_whole(
            micro_batch_tokens=setup.trainer.micro_batch_tokens,
            processes=setup.trainer.processes,
            normaliser=setup.recipe.normaliser,
        )


def _with_own(setup: EvolverSetup, options: RecipeOptions) -> dict[str, ChosenPart]:
    chosen = dict(setup.recipe.parts)
    for kind, name in (("play", options.play), ("gate", options.gate)):
        if name is None:
            continue
        if not setup.local_parts:
            raise EvolverSetupError(
                f"silo.toml names a {kind} of this silo's own, and the plan's evolve.local_parts "
                "does not allow any: remove it, or ask for a plan that does"
            )
        if kind in chosen and chosen[kind].card.name != _PLAIN:
            raise EvolverSetupError(f"silo.toml names a {kind}, and the plan has one already")
        chosen[kind] = _own(kind, name)
    return chosen


def _own(kind: str, name: str) -> ChosenPart:
    try:
        found = part_card(kind, name)
        if not isinstance(found.card, PartCard):
            raise EvolverSetupError(f"{name!r} is no {kind}")
        return ChosenPart(card=found.card, options=found.card.options(), package=found.package)
    except (UnknownPartError, ValidationError) as error:
        raise EvolverSetupError(f"{kind} {name!r} of silo.toml: {error}") from error
