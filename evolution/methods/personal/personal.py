"""An adapter of the silo's own, beside the global one. It never leaves the silo.

=============  ====================================================================================
``ditto``      Ditto (arXiv 2012.04221, algorithm 1): after each round's work, from the silo's own
               v_k (v_0 is the first global adapter it was given),
               ``v_k ← v_k − η (∇F_k(v_k) + λ (v_k − φ_t))`` over the round's training set.
``finetune``   The same with v_k ← φ_t first and λ = 0: some passes on top of what was received.
``residual``   An own part δ_k (0 at first) that is added to the shared adapter, whichever is the
               newest: v_k ← φ_t + δ_k first, the passes of fine-tuning, δ_k ← v_k − φ_t. What is
               used is φ_{t+1} + δ_k. Of a shared and an own model that are summed the own one
               learns what the shared one lacks (Federated Residual Learning, arXiv 2003.12880).
``fedsa``      FedSA-LoRA (arXiv 2410.01463, §3.2): the factors B stay in the silo. A round starts
               from [global A, own B], trains both and uploads the difference of A alone.
=============  ====================================================================================

The steps are those of the round's own training: AdamW, the plan's batch, clip and step size. F_k is
the plan's objective on the round's training set, demonstrations included; all but ``fedsa`` train
every factor, whatever the plan trains in that round.

δ_k is a difference of factors, as the delta that leaves is, and is added as the federation adds
that one: ranks stay as they are, and every engine and trainer takes the sum. Ditto keeps v_k and
follows the shared adapter only as far as it is pulled; the residual keeps the difference, so all
that the others learn in a round is in what the silo uses next. After a rollback δ_k is added to
what came back, and is trained on from there.

What privacy allows. ``ditto``, ``finetune`` and ``residual`` run under every mode: v_k is computed
after the delta, from stores that the delta does not read, and nothing that is uploaded, charged,
drawn or counted depends on it; a failure of it costs the round nothing. It is trained on the data
without noise, also under the record-level modes, so it is as private as the buffer: it may be
*used* by those who may see the silo's data, and exporting it is not covered by any epsilon. Its
training takes time, which depends on the data as the rest of the local work does: the plan's
``ready_after_s`` must leave room for it. ``fedsa`` is refused under the record-level modes: there
A's release would depend on the data through B, which no noise protects and no ledger charged. Under
``silo`` the whole delta of A is clipped and noised whatever it was computed from, so it may run.

Invariants:

1. Round r starts from what the newest earlier round left, so a round that is done again does not
   train anything twice (``evolution/methods/personal/store.py``).
2. Equal work on equal stores gives equal personal adapters.
3. With ``fedsa`` what is stored are the factors B and nothing else; with ``residual`` it is δ_k, by
   the names of all factors; the others hold all factors.

Covered: these four. Mixtures of an own adapter with the shared one: ``interpolation.py``. Not
covered: personal ranks, mixtures that depend on the input, personal layers other than B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from evolution.errors import EvolverSetupError, PersonalStoreError
from evolution.methods.evolver import Work
from evolution.methods.options import RecipeOptions
from evolution.methods.personal.compared import TRAINED_APART
from evolution.methods.personal.store import PersonalStore
from evolution.methods.streams import Stream, round_seed, train_settings
from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.trainer import Trainer
from federation.adapter.encoding import adapter_sha256, encode_adapter
from federation.adapter.layout import factor
from federation.adapter.value_head import head_of, without_head

__all__ = ["PersonalAdapter", "identity_of"]

Tensors = Mapping[str, np.ndarray]


def identity_of(tensors: Tensors) -> str:
    """SHA-256 of an adapter's published form, by which an engine tells adapters apart."""
    return adapter_sha256(encode_adapter(dict(tensors))).hex()


class PersonalAdapter:
    """See the module."""

    def __init__(self, options: RecipeOptions, *, state_dir: Path) -> None:
        """Use the silo's files of the options' kind.

        They are in ``state_dir``, the method's private directory for the run.
        """
        self._options = options
        self._kind = options.personal
        self._store = PersonalStore(state_dir / "personal" / options.personal)

    @property
    def shares_a_only(self) -> bool:
        """Whether the round starts from, and keeps, factors B of the silo's own."""
        return self._kind == "fedsa"

    @property
    def trained_apart(self) -> bool:
        """Whether a personal adapter is trained after the round's own work."""
        return self._kind in TRAINED_APART

    @property
    def plays_released(self) -> bool:
        """Whether a round's first tries are by the adapter that it was given."""
        return not self.shares_a_only

    def start_of(self, work: Work) -> Tensors:
        """What the round starts from: the global adapter.

        With ``fedsa`` its factors B are the silo's own, where it has some.

        Raises:
            EvolverSetupError: The plan shares other factors than A, or corrects gradients.
            PersonalStoreError: The silo's factors cannot be read.
        """
        if not self.shares_a_only:
            return work.adapter
        if any(factor(name) == "B" for name in work.trainable):
            raise EvolverSetupError(
                "personal 'fedsa' keeps the factors B in the silo, and this plan uploads them: it "
                "needs a plan with aggregation 'fedsa'"
            )
        if work.correction is not None:
            raise EvolverSetupError("SCAFFOLD has no correction for factors that are not shared")
        return {**work.adapter, **(self._store.before(work.round) or {})}

    def trained_names(self, work: Work) -> frozenset[str]:
        """The factors that the round's own work trains: those of the delta, and B under fedsa."""
        if not self.shares_a_only:
            return work.trainable
        return work.trainable | {name for name in work.adapter if factor(name) == "B"}

    def keep_factors(self, work: Work, trained: Tensors) -> None:
        """With ``fedsa``, keep the factors B that the round ended with.

        Raises:
            PersonalStoreError: They cannot be kept.
        """
        if self.shares_a_only and work.settings.learn:
            own = {n: one for n, one in without_head(trained).items() if factor(n) == "B"}
            self._store.write(work.round, own)

    def train_apart(
        self,
        trainer: Trainer,
        rows: Sequence[Row],
        objective: Part,
        work: Work,
        *,
        head: Tensors,
    ) -> dict[str, float]:
        """Train the silo's own v_k, and keep it, or what it adds to the shared adapter.

        The trainer's adapter is overwritten. ``head`` is the value head that it starts from the
        first time, where the plan shares none and the objective learns one; of fine-tuning only the
        head goes on from round to round. Returns figures of the silo's own.

        Raises:
            PersonalStoreError: The adapter cannot be read or kept.
        """
        if not self.trained_apart or not work.settings.learn:
            return {}
        own: Tensors = {}
        if self._kind != "finetune" or head:
            own = self._store.before(work.round) or {}
        if self._kind == "finetune":
            own = head_of(own)
        start = {**work.adapter, **head, **self._used(work.adapter, own)}
        trainer.reset(start)
        report = trainer.train(
            rows,
            objective,
            replace(
                train_settings(work.settings, objective, seed=round_seed(work, Stream.PERSONAL)),
                epochs=self._options.personal_epochs or work.settings.epochs,
                proximal_mu=self._options.personal_lambda,
            ),
            trainable=frozenset(start),
            # A head of the silo's own is drawn to nobody's.
            anchor={**head_of(start), **work.adapter},
        )
        trained = trainer.adapter()
        if self._kind == "residual":
            trained = head_of(trained) | _difference(trained, work.adapter)
        self._store.write(work.round, trained)
        return {
            "personal_first_loss": report.first_loss,
            "personal_last_loss": report.last_loss,
            "personal_optimiser_steps": float(report.optimiser_steps),
        }

    def current(self, adapter: Tensors, *, through: int | None = None) -> dict[str, np.ndarray]:
        """The adapter that is the silo's own: v_k, φ + δ_k, or the global A with the silo's own B.

        Before the first round, it is the global adapter. It is that of the newest round, or of the
        newest up to ``through``.

        Raises:
            EvolverSetupError: The silo keeps none.
            PersonalStoreError: It cannot be read.
        """
        if self._kind == "off":
            raise EvolverSetupError("this silo keeps no personal adapter: set the option personal")
        store = self._store
        kept = store.newest() if through is None else store.before(through + 1)
        return {**adapter, **self._used(adapter, kept or {})}

    def _used(self, adapter: Tensors, kept: Tensors) -> Tensors:
        """What is used in the place of the shared adapter's factors, of what the store kept."""
        if self._kind != "residual":
            return kept
        part = without_head(kept)
        if part and _shapes(part) != _shapes(without_head(adapter)):
            raise PersonalStoreError(
                "what this silo adds to the shared adapter is of other factors: it is of another "
                "run, or was changed; delete it to begin again"
            )
        return {**kept, **{name: adapter[name] + one for name, one in part.items()}}


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _difference(trained: Tensors, adapter: Tensors) -> dict[str, np.ndarray]:
    """What the factors came to beside those of the shared adapter."""
    return {n: one - adapter[n] for n, one in without_head(trained).items()}
