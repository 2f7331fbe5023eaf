"""The parts that a recipe runs with here: the plan's, with the silo's own gate, as far as they may.

Invariants: a part that couples or reads more than the set-up's privacy lets it is refused with its
reason; so is a class that says something else than its card, and an objective over whole
mini-batches where the silo's trainer divides them; a package's parts are tried on made-up units
before they run where units are protected (``admission``).

Covered: refusals before anything is explored or charged. Not covered: whether the site allows a
package (``silo_agent/policy/plan.py``).
"""

from __future__ import annotations

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


def parts_of(setup: EvolverSetup, options: RecipeOptions) -> dict[str, Part]:
    """The recipe's parts by kind, as far as the set-up allows them.

    Raises:
        EvolverSetupError: One cannot be loaded, or does not run under the set-up's privacy.
    """
    chosen = dict(setup.recipe.parts)
    if options.gate is not None:
        if not setup.local_parts:
            raise EvolverSetupError(
                "silo.toml names a gate of this silo's own, and the plan's evolve.local_parts does "
                "not allow any: remove it, or ask for a plan that does"
            )
        if "gate" in chosen:
            raise EvolverSetupError("silo.toml names a gate, and the plan has one already")
        chosen["gate"] = _own_gate(options.gate)
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


def _own_gate(name: str) -> ChosenPart:
    try:
        found = part_card("gate", name)
        if not isinstance(found.card, PartCard):
            raise EvolverSetupError(f"{name!r} is no gate")
        return ChosenPart(card=found.card, options=found.card.options(), package=found.package)
    except (UnknownPartError, ValidationError) as error:
        raise EvolverSetupError(f"gate {name!r} of silo.toml: {error}") from error
