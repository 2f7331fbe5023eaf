"""The value head of a silo's own, where a plan does not federate it. It never leaves the silo.

A round starts from the head that the newest earlier round left, zeros before the first, and keeps
the one that it ends with, whether or not a gate took the round's adapter: what a state is worth was
learned all the same. The delta names LoRA factors alone.

What privacy allows. In modes ``none`` and ``silo`` it may run: the whole delta is clipped and
noised whatever it was computed from. In the record-level modes it is refused: the head would be
trained on the units without noise, every later upload would be computed through it, and no ledger
charged that. There the head is federated, and what each unit does to it is clipped and noised with
the rest.

Invariants: as of ``evolution/methods/personal/store.py``: a round that is done again trains nothing
twice.

Covered: a head for the round's own work, and none beside a personal adapter, whose own file holds
its head. Not covered: heads that silos of one site share.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from evolution.errors import EvolverSetupError
from evolution.methods.evolver import EvolverSetup, Work
from evolution.methods.personal.store import PersonalStore
from evolution.methods.protection import protected
from evolution.model.lora import first_value_head
from federation.adapter.value_head import VALUE_HEAD, head_of, require_head
from federation.errors import LayoutError

__all__ = ["OwnHead"]

Tensors = Mapping[str, np.ndarray]


class OwnHead:
    """See the module; where a recipe learns no value, or shares its head, it does nothing."""

    def __init__(self, setup: EvolverSetup, base_dir: Path, *, state_dir: Path) -> None:
        """Use the silo's files in ``state_dir``, the method's private directory for the run.

        Raises:
            EvolverSetupError: The set-up's privacy does not allow a head of the silo's own.
        """
        recipe, spec = setup.recipe, protected(setup.privacy)
        self._kept = recipe.value_head == "local"
        self._shared = recipe.shares_value_head
        self._base_dir = base_dir
        self._store = PersonalStore(state_dir / "personal" / "value_head")
        if spec is not None and (problem := recipe.head_refusal(spec.mode)):
            raise EvolverSetupError(problem)

    def require_shared(self, work: Work) -> None:
        """Check that the work's adapter has a head exactly where the plan shares one.

        Raises:
            EvolverSetupError: It does not.
        """
        try:
            require_head(work.adapter.keys(), shared=self._shared)
        except LayoutError as error:
            raise EvolverSetupError(str(error)) from error

    def start_of(self, work: Work) -> dict[str, np.ndarray]:
        """What a round starts from, by name; empty where the silo keeps no head.

        Raises:
            EvolverSetupError: Gradients are corrected.
            PersonalStoreError: The head cannot be read.
        """
        if not self._kept:
            return {}
        if work.correction is not None:
            raise EvolverSetupError(
                "SCAFFOLD has no correction for a value head that is not shared: federate it"
            )
        return self._store.before(work.round) or first_value_head(self._base_dir)

    def first(self) -> dict[str, np.ndarray]:
        """What a personal adapter starts from; empty where the silo keeps no head."""
        return first_value_head(self._base_dir) if self._kept else {}

    @property
    def names(self) -> frozenset[str]:
        """What of it the round's own work trains."""
        return frozenset({VALUE_HEAD} if self._kept else ())

    def keep(self, work: Work, trained: Tensors) -> None:
        """Keep the head that the round ended with.

        Raises:
            PersonalStoreError: It cannot be kept.
        """
        if self._kept and work.settings.learn:
            self._store.write(work.round, head_of(trained))
