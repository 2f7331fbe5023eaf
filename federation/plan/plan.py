"""The run plan: signed data that names what every silo does, and nothing that executes.

A plan is a TOML document of at most 64 KiB. Its SHA-256 over the exact bytes is its identity;
round tasks, records and descriptors carry that digest, never a re-serialised form.

Invariants:
    1. Every key is known. An unknown one is an error that names the nearest valid key, and all
       problems of a document are reported together, each with its key path.
    2. Every value is bounded and of the stated TOML type: no coercion, no NaN, no infinity.
    3. The number of colluding silos c and the threshold t cannot be written in a plan: c comes
       from the roster that the consortium root signed, t is computed from it.
    4. A method that exists but cannot run is refused with its reason, never mapped to another.

Covered: the document on its own (``federation.plan.read``), its tables together
(``federation.plan.rules``), and the privacy part through ``dp.config.PrivacySpec``.
Not covered: whether it suits a roster (``federation.forecast.forecast``), whether a site allows it
and whether the evolver is compatible with the privacy mode (the silo's guardian).
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Final, Self

from dp.accounting.rdp import charged_attempts
from dp.config import RECORD_MODES, Mode, PrivacySpec, RecordSpec
from federation.adapter.layout import Layout
from federation.adapter.target import require_target
from federation.adapter.value_head import require_head
from federation.aggregate.aggregator import Aggregator
from federation.aggregate.optimiser import Optimiser
from federation.aggregate.registry import make_aggregator, make_optimiser
from federation.errors import PlanError
from federation.plan.recipe import Recipe, recipe_of
from federation.plan.section import Section, Slug
from federation.plan.tables import (
    AggregationSection,
    EvaluateSection,
    EvolveSection,
    ModelSection,
    NegotiationSection,
    PrivacySection,
    RoundsSection,
    SecureAggregationSection,
    SelectionSection,
    VetoesSection,
)
from secagg.errors import ParameterError
from secagg.parameters import threshold

_FACTOR_A: Final = ".lora_A.weight"
UNIT_SHARE: Final = 0.5
"""The part of a round's time that the environment of one task may take in a record-level mode."""


class Plan(Section):
    """One run, as the consortium agreed on it."""

    name: Slug
    """What people call the run."""
    model: ModelSection
    """The base model and the adapter's shape."""
    evolve: EvolveSection
    """The local work of one round, fixed for every silo."""
    aggregation: AggregationSection
    """How the sum becomes the next adapter."""
    privacy: PrivacySection
    """Unit, clip, noise and caps."""
    secure_aggregation: SecureAggregationSection
    """Cohort floor and ring."""
    rounds: RoundsSection
    """How many rounds, and how long each may take."""
    selection: SelectionSection = SelectionSection()
    """Who takes part."""
    evaluate: EvaluateSection = EvaluateSection()
    """Held-out evaluation inside each silo."""
    vetoes: VetoesSection | None = None
    """Whether the silos' guards have a say in how the run goes on."""
    negotiation: NegotiationSection | None = None
    """How far sites' counter-offers may move the plan before it starts."""

    @cached_property
    def spec(self) -> PrivacySpec:
        """The privacy part in the form that the descriptor hashes.

        Raises:
            PrivacyError: If it cannot be honoured; never of a plan that was read.
        """
        privacy = self.privacy
        return PrivacySpec(
            mode=Mode(privacy.mode),
            unit=privacy.unit,
            clip_l2=privacy.clip_l2,
            noise_multiplier=privacy.noise_multiplier,
            metrics_noise_multiplier=privacy.metrics_noise_multiplier,
            delta=privacy.delta,
            epsilon_cap=privacy.epsilon_cap,
            grid=privacy.grid,
            record=None if privacy.record is None else RecordSpec(**privacy.record.model_dump()),
        )

    @cached_property
    def recipe(self) -> Recipe:
        """The method and its parts.

        Raises:
            UnknownPartError: A package was removed meanwhile; never of a plan that was just read.
        """
        evolve = self.evolve
        return recipe_of(evolve.method, evolve.parts, evolve.normaliser)

    def __copy__(self) -> Self:
        """A copy that computes its own ``spec`` and ``recipe``: it may be given other tables."""
        copied = super().__copy__()
        for computed in ("spec", "recipe"):
            copied.__dict__.pop(computed, None)
        return copied

    @property
    def sums_per_round(self) -> int:
        """S: aggregations of one round; 1 but in ``record_distributed``."""
        return self.spec.sums_per_round

    @property
    def releases(self) -> int:
        """Aggregations of a run that loses none: T·S."""
        return self.rounds.count * self.sums_per_round

    @property
    def charged_releases(self) -> int:
        """Attempts at an aggregation that ε is stated for: all releases and the spare ones."""
        return charged_attempts(self.releases, self.rounds.spare_attempts)

    @property
    def first_steps(self) -> int:
        """How many of them may be of a round's step 0, whose block carries figures.

        Spare attempts are for steps 0 in proportion; a run that needs more of them ends.
        """
        return charged_attempts(self.rounds.count, self.rounds.spare_attempts)

    @property
    def needs_tasks(self) -> bool:
        """Whether silos work on tasks of their own; ``constant`` contributes a fixed vector."""
        return self.recipe.method.needs_model

    @property
    def tasks_per_round(self) -> int:
        """Tasks that a silo explores in a round; 0 where nothing is explored."""
        evolve = self.evolve
        return evolve.episodes_per_round // evolve.tries_per_task if evolve.explore else 0

    @property
    def try_s(self) -> float | None:
        """Most seconds that the environment of one try may take; None where units are not apart.

        All tries of one task together take ``UNIT_SHARE`` of the time before the ready report, so
        that one task that hangs never takes the whole of it, and costs no other task anything.
        """
        whole_s = self.rounds.ready_after_s
        if Mode(self.privacy.mode) not in RECORD_MODES or not whole_s:
            return None
        return UNIT_SHARE * whole_s / self.evolve.tries_per_task

    @property
    def groups(self) -> int:
        """g: sums of one release, each of a group of silos; 1 without groups."""
        section = self.aggregation.groups
        return 1 if section is None else section.count

    @property
    def least_groups(self) -> int:
        """Sums that a release needs at least: 2f + 1; 1 without groups."""
        section = self.aggregation.groups
        return 1 if section is None else 2 * section.byzantine + 1

    @property
    def longest_ready_s(self) -> int:
        """The latest that a round's ready deadline may be after its task, whatever is chosen."""
        ranges = self.selection.ranges
        moves = None if ranges is None else ranges.ready_deadline_s
        return self.rounds.ready_deadline_s if moves is None else moves[1]

    @property
    def most_local_epochs(self) -> int:
        """The most local epochs of a round, whatever is chosen."""
        ranges = self.selection.ranges
        moves = None if ranges is None else ranges.local_epochs
        return self.evolve.local_epochs if moves is None else moves[1]

    def asked_of(self, silos: int) -> int:
        """How many of so many silos a round asks at least, as its plan has it."""
        fewest = self.selection.fewest
        return silos if fewest is None else min(silos, fewest)

    @property
    def has_figures(self) -> bool:
        """Whether success and norms are summed at all; without noise only if the plan says so."""
        return self.privacy.exact_figures or Mode(self.privacy.mode) is not Mode.NONE

    @property
    def kept_rounds(self) -> int:
        """Rounds whose tasks a silo keeps; a window of 0 keeps all."""
        return min(self.evolve.window or self.rounds.count, self.rounds.count)

    @property
    def population_cap(self) -> int:
        """The most units that a silo can sample from: the tasks of as many rounds as it keeps.

        Users are not more than their tasks.
        """
        return self.tasks_per_round * self.kept_rounds

    def aggregator(self, layout: Layout) -> Aggregator:
        """The plan's aggregation method over an adapter's layout.

        Raises:
            LayoutError: If the method or the gauge needs LoRA pairs and the layout has others, if
                its layers are not those of the plan's target, or if it has a value head where the
                plan federates none, or none where it does.
        """
        require_head({spec.name for spec in layout.specs}, shared=self.recipe.shares_value_head)
        require_target(layout, self.model.target)
        section = self.aggregation
        return make_aggregator(
            section.method, layout, server_step=section.server_step, gauge=section.gauge
        )

    def optimiser(self) -> Optimiser:
        """The plan's server optimiser, without state: one for each run that is followed."""
        return make_optimiser(self.aggregation.server_optimiser)

    def is_last_step(self, step: int) -> bool:
        """Whether this release ends its round; the gauge and the alternation wait for it."""
        return step == self.sums_per_round - 1

    def require_rank(self, layout: Layout) -> None:
        """Check that an adapter to begin with has the plan's rank, in every layer.

        Raises:
            PlanError: It has another one.
        """
        for spec in layout.specs:
            if not spec.name.endswith(_FACTOR_A) or not spec.shape:
                # The rank of B is that of its A, wherever pairs are needed.
                continue
            rank = spec.shape[0]
            if rank != self.model.lora_rank:
                another = (
                    f"model.lora_rank: the plan says {self.model.lora_rank}, and the adapter has "
                    f"rank {rank} in {spec.name}: write {rank} there, or give an adapter of the "
                    "plan's rank"
                )
                raise PlanError([another])

    def require_cohort(self, silos: int, colluding: int) -> None:
        """Check that a roster of this size can run the plan at all.

        Where rounds ask K of them, K have to be able to. With groups each of them has to be, the
        least of them too.

        Raises:
            PlanError: If it is too small for c, for ``n_min`` or for the quorum.
        """
        asked = self.asked_of(silos)
        require = self.require_sum if self.groups == 1 else self._require_groups
        try:
            require(asked, colluding)
        except PlanError as error:
            if asked == silos:
                raise
            too_few = (
                f"selection.count: a round asks {asked} of {silos} silos, who have to make its sum "
                "alone: raise it"
            )
            within = (f"of {asked} silos: {problem}" for problem in error.problems)
            raise PlanError([too_few, *within]) from error

    def _require_groups(self, silos: int, colluding: int) -> None:
        least = silos // self.groups
        try:
            self.require_sum(least, colluding)
        except PlanError as error:
            too_many = (
                f"aggregation.groups.count: {silos} silos in {self.groups} groups leave {least} in "
                "the least of them, where each is a sum of its own: use fewer groups, or enrol "
                "more silos"
            )
            within = (f"in a group of {least}: {problem}" for problem in error.problems)
            raise PlanError([too_many, *within]) from error

    def require_sum(self, silos: int, colluding: int) -> None:
        """Check that so many silos can have a sum of their own.

        Raises:
            PlanError: If they are too few for c, for ``n_min`` or for the quorum.
        """
        problems = []
        try:
            threshold(silos, colluding)
        except ParameterError as error:
            problems.append(f"roster: {error}")
        n_min = self.secure_aggregation.n_min
        if n_min > silos:
            problems.append(
                f"secure_aggregation.n_min: {n_min} survivors are asked for but the roster has "
                f"{silos} silos: enrol more"
            )
        quorum = self.rounds.ready_quorum(n_min)
        if quorum > silos:
            problems.append(
                f"rounds.quorum: a round opens with {quorum} ready silos (n_min + 1 unless set) "
                f"but the roster has {silos}: enrol more, or set it"
            )
        elif not problems:
            try:
                # The smallest cohort that may open a round has to stand c colluders as well.
                threshold(quorum, colluding)
            except ParameterError as error:
                problems.append(f"rounds.quorum: a round of {quorum} silos cannot run: {error}")
        if problems:
            raise PlanError(problems)


def plan_sha256(toml_bytes: bytes) -> bytes:
    """The identity of a plan: SHA-256 of its exact bytes."""
    return hashlib.sha256(toml_bytes).digest()
