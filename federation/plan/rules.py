"""What the tables of a run plan ask of each other.

    privacy.exact_figures    only where no noise is on them: every other mode has figures with noise
    privacy.record           is there exactly in the record-level modes, with the keys of its mode
    expected_units           B̄ ≥ q · (most units that a silo can have), so that the sampled mean and
                             the bound B_max hold whatever the data are
                             B̄ so large that overflowing steps do not use up δ
    privacy.grid             the smallest cohort's sum fits the ring: n_min·B_max·(Δ+1) + 12·z·Δ;
                             in record_local one silo's sum of units does
    steps_per_round          T·S is at most MAX_RELEASES: each one leaves a record and a sum
    server_optimiser         'sgd' or 'adam' exactly where gradients are summed; moments that cross
                             rounds only where the coordinates stay
    gauge                    not with a method that excludes it
    method                   not in a mode that its personal factors would escape
    aggregation.groups       not without noise, as each round's groups are other cohorts; with a
                             method and an optimiser that a robust mean is defined for
    evolve.parts             only in modes that their cards allow; a value head of all silos only
                             with a method that takes any tensors
    evolve.local_epochs      one where the released adapter alone may play
    selection                rounds of fewer than all without noise only by a word of the plan, as
                             its cohorts vary; K silos that can make the sums of a round
    selection.ranges         around what the plan has; deadlines later than a ready report may come,
                             and epochs where not the released adapter alone plays
    evolve.proximal_mu       only where silos train freely: the record-level modes ignore it;
                             and so with evolve.learning_rate_schedule
    step_answer_after_s      only where silos answer steps
    vetoes                   only in mode 'silo': a site's own probes are its own data, whose say no
                             noise hides in 'none', and noise for one unit does not
    negotiation              from what the plan says downwards; ε only where there is noise

A plan that is to start is asked for more than one that ran (``problems_of_time``): in the
record-level modes, and with vetoes, for times that hide how long a silo's work took. A plan that an
earlier version started says none, and its chain must still be read.

Every problem is one line that starts with its key path and says what to do.

Covered: the above. Not covered: single tables (``federation.plan.tables``), what depends on a
roster or on the adapter's size (``federation.forecast.forecast``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

from dp.config import RECORD_MODES, Mode, PrivacySpec
from dp.errors import PrivacyError
from dp.noise.share import no_wrap
from federation.aggregate.fedavg import FedAvg
from federation.aggregate.registry import (
    GRADIENT_OPTIMISERS,
    GROUP_METHODS,
    GROUP_OPTIMISERS,
    NO_GAUGE,
    NO_RECORD_MODES,
    OPTIMISERS,
    moments_problem,
)
from federation.plan.charges import charges_of_run
from federation.plan.plan import Plan
from federation.plan.tables import RecordSection

_ON_DELTAS: Final = ", ".join(repr(n) for n in OPTIMISERS if n not in GRADIENT_OPTIMISERS)
_PROPOSED: Final = "`chorale-silo doctor --dry-round --plan PLAN` proposes it"
MAX_RELEASES: Final = 10_000
"""Aggregations of a run, and records of its chain: also the most rounds that a plan may have."""


def problems_between_tables(plan: Plan) -> tuple[str, ...]:
    """Everything that is wrong between the tables of a plan whose tables are right."""
    return (
        *_evolve(plan),
        *_value_head(plan),
        *_aggregation(plan),
        *_groups(plan),
        *_selection(plan),
        *_figures(plan),
        *_record_table(plan),
        *_rounds(plan),
        *_vetoes(plan),
        *_negotiation(plan),
    )


def problems_of_time(plan: Plan) -> tuple[str, ...]:
    """What a plan must say about time before it starts; asked at its start and by each silo."""
    mode = Mode(plan.privacy.mode)
    problems = []
    if mode in RECORD_MODES and not plan.rounds.ready_after_s:
        problems.append(
            f"rounds.ready_after_s: in mode {mode.value!r} how long a silo's local work took must "
            f"not show: set it to more than the slowest silo needs; {_PROPOSED}"
        )
    if mode is Mode.RECORD_DISTRIBUTED and not plan.rounds.step_answer_after_s:
        problems.append(
            f"rounds.step_answer_after_s: in mode {mode.value!r} how long a silo's sum of unit "
            f"gradients took must not show: set it to more than the slowest silo needs; {_PROPOSED}"
        )
    if plan.vetoes is not None and not plan.rounds.ready_after_s:
        problems.append(
            "rounds.ready_after_s: a silo whose guard refuses an adapter does not work with it, "
            "and would be ready at once, which says so: set it to more than the slowest silo needs"
        )
    return tuple(problems)


def problems_of_start(plan: Plan, now_unix_s: float) -> tuple[str, ...]:
    """Why a plan is not started yet, to the minute from which it is."""
    start_s = plan.rounds.start_after_unix_s
    if start_s is None or now_unix_s >= start_s:
        return ()
    begins = f"{datetime.fromtimestamp(start_s, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"
    return (f"rounds.start_after_unix_s: it starts no earlier than {begins}: start it then",)


def problems_of_spec(plan: Plan) -> tuple[str, ...]:
    """What is wrong with the ring and with δ in a plan that has no problem between its tables.

    Raises:
        PrivacyError: If its privacy part is none, or costs what cannot be computed.
    """
    return (*_ring(plan, plan.spec), *_overflow(plan, plan.spec))


def _evolve(plan: Plan) -> Iterator[str]:
    mode = Mode(plan.privacy.mode)
    yield from plan.recipe.refusals(mode, plan.privacy.unit)
    if mode in RECORD_MODES and plan.evolve.local_epochs > 1:
        yield (
            f"evolve.local_epochs: in mode {mode.value!r} the released adapter alone may play, and "
            "after the first of them another would: set it to 1"
        )
    if mode in RECORD_MODES and plan.evolve.proximal_mu > 0.0:
        yield (
            f"evolve.proximal_mu: in mode {mode.value!r} every step is a noisy sum of clipped unit "
            "gradients and has no proximal term, so it would change nothing: remove this key"
        )
    if mode in RECORD_MODES and plan.evolve.learning_rate_schedule != "constant":
        yield (
            f"evolve.learning_rate_schedule: in mode {mode.value!r} all noisy steps have one size, "
            "so it would change nothing: remove this key"
        )


def _value_head(plan: Plan) -> Iterator[str]:
    section = plan.aggregation
    if not plan.recipe.shares_value_head:
        return
    if section.method != FedAvg.name:
        yield (
            f"evolve.parts.objective: a federated value head is no LoRA factor, and method "
            f"{section.method!r} takes the adapter apart into factors A and B: use "
            f"{FedAvg.name!r}, or value_head = 'local'"
        )
    if section.gauge:
        yield (
            "aggregation.gauge: the gauge rewrites products of LoRA factors, and a federated value "
            "head is none: set gauge to false, or value_head = 'local'"
        )


def _aggregation(plan: Plan) -> Iterator[str]:
    mode, section = Mode(plan.privacy.mode), plan.aggregation
    optimiser = section.server_optimiser
    gradients = mode is Mode.RECORD_DISTRIBUTED
    if gradients != (optimiser in GRADIENT_OPTIMISERS):
        wanted = (
            "sums gradients: set 'sgd' or 'adam', whose learning rate is aggregation.server_step"
            if gradients
            else f"sums deltas, and {optimiser!r} steps on gradients: use one of {_ON_DELTAS}"
        )
        yield f"aggregation.server_optimiser: mode {mode.value!r} {wanted}"
    if section.gauge and section.method in NO_GAUGE:
        yield f"aggregation.gauge: {NO_GAUGE[section.method]}, or set gauge to false"
    if mode in RECORD_MODES and section.method in NO_RECORD_MODES:
        yield f"aggregation.method: {NO_RECORD_MODES[section.method]}"
    if problem := moments_problem(section.method, optimiser, gauge=section.gauge):
        yield f"aggregation.server_optimiser: {problem}: use 'fedavg', or another method"


def _groups(plan: Plan) -> Iterator[str]:
    section = plan.aggregation
    if section.groups is None:
        return
    if Mode(plan.privacy.mode) is Mode.NONE:
        yield (
            "aggregation.groups: each round has other groups, and without noise their sums could "
            "be subtracted until single silos show: choose a mode with noise, or remove this table"
        )
    if Mode(plan.privacy.mode) is Mode.RECORD_DISTRIBUTED:
        yield (
            "aggregation.groups: in mode 'record_distributed' each step is a sum of its own, and "
            "the groups of a step wait for each other: not available; use another mode, or remove "
            "this table"
        )
    if section.method not in GROUP_METHODS:
        yield (
            f"aggregation.groups: method {section.method!r} is not defined on a robust mean of "
            f"groups: use {_of(GROUP_METHODS)}, or remove this table"
        )
    if section.server_optimiser not in GROUP_OPTIMISERS:
        yield (
            f"aggregation.groups: server_optimiser {section.server_optimiser!r} takes the noise of "
            f"one sum off its moments, and groups have another: use one of {_of(GROUP_OPTIMISERS)}"
        )


def _selection(plan: Plan) -> Iterator[str]:
    section = plan.selection
    if section.policy == "all":
        return
    noiseless = Mode(plan.privacy.mode) is Mode.NONE
    if noiseless and section.varies and not section.cohort_may_vary:
        yield (
            f"selection.policy: {section.policy!r} asks other silos in each round, and without "
            "noise their sums can be subtracted until single silos show: choose a mode with noise, "
            "or 'all'; or write cohort_may_vary = true beside it, and only sites take part whose "
            "policies, or whoever approves the run there, say so too"
        )
    if section.cohort_may_vary and not noiseless:
        yield (
            f"selection.cohort_may_vary: in mode {plan.privacy.mode!r} cohorts vary without this "
            "word: remove this key"
        )
    if section.varies:
        yield from _selected(plan)
    yield from _ranges(plan)


def _ranges(plan: Plan) -> Iterator[str]:
    """What a choice may move lies around the plan's own, and is allowed by its mode."""
    ranges, rounds, mode = plan.selection.ranges, plan.rounds, Mode(plan.privacy.mode)
    if ranges is None:
        return
    if ranges.ready_deadline_s is not None:
        least, most = ranges.ready_deadline_s
        if not least <= rounds.ready_deadline_s <= most:
            yield (
                f"selection.ranges.ready_deadline_s: [{least}, {most}] leaves out "
                f"rounds.ready_deadline_s = {rounds.ready_deadline_s}, which holds where a choice "
                "says nothing: widen it"
            )
        if rounds.ready_after_s >= least:
            yield (
                f"selection.ranges.ready_deadline_s: rounds.ready_after_s = {rounds.ready_after_s} "
                f"leaves no time before {least}: raise the least, or lower ready_after_s"
            )
    if ranges.local_epochs is not None:
        fewest, most = ranges.local_epochs
        if not fewest <= plan.evolve.local_epochs <= most:
            yield (
                f"selection.ranges.local_epochs: [{fewest}, {most}] leaves out "
                f"evolve.local_epochs = {plan.evolve.local_epochs}, which holds where a choice "
                "says nothing: widen it"
            )
        if mode in RECORD_MODES:
            yield (
                f"selection.ranges.local_epochs: in mode {mode.value!r} the released adapter alone "
                "may play, once: remove this key"
            )


def _selected(plan: Plan) -> Iterator[str]:
    """Whether K silos are enough for the sums of a round."""
    section, groups = plan.selection, plan.groups
    count, n_min = section.fewest or 0, plan.secure_aggregation.n_min
    key = "selection.count" if count == section.count else "selection.schedule.to"
    least = max(plan.rounds.ready_quorum(n_min), n_min)
    if count >= groups * least:
        return
    each = f" in each of {groups} groups" if groups > 1 else ""
    fewer = ", or fewer groups" if groups > 1 else ""
    yield (
        f"{key}: {count} silos are asked, and a round opens with {least} ready ones"
        f"{each} (rounds.quorum, n_min + 1 unless set): raise it to {groups * least} or more, or "
        f"lower rounds.quorum and n_min{fewer}"
    )


def _of(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _figures(plan: Plan) -> Iterator[str]:
    mode = Mode(plan.privacy.mode)
    if plan.privacy.exact_figures and mode is not Mode.NONE:
        yield (
            f"privacy.exact_figures: in mode {mode.value!r} figures have the noise of "
            "privacy.metrics_noise_multiplier and none is exact: remove this key"
        )


def _rounds(plan: Plan) -> Iterator[str]:
    mode = Mode(plan.privacy.mode)
    if plan.rounds.step_answer_after_s and mode is not Mode.RECORD_DISTRIBUTED:
        yield (
            f"rounds.step_answer_after_s: in mode {mode.value!r} no step is answered, so it would "
            "change nothing: remove this key"
        )


def _negotiation(plan: Plan) -> Iterator[str]:
    ranges = plan.negotiation
    if ranges is None:
        return
    least = ranges.least_local_epochs
    if least is not None and least > plan.evolve.local_epochs:
        yield (
            f"negotiation.least_local_epochs: {least} is more than evolve.local_epochs = "
            f"{plan.evolve.local_epochs}, from which offers go down: lower it"
        )
    if ranges.least_epsilon is not None and Mode(plan.privacy.mode) is Mode.NONE:
        yield (
            "negotiation.least_epsilon: mode 'none' has no noise to add to: remove this key, or "
            "choose a mode with noise"
        )


def _vetoes(plan: Plan) -> Iterator[str]:
    mode = Mode(plan.privacy.mode)
    if plan.vetoes is not None and mode is not Mode.SILO:
        why = (
            "without noise a sum of vetoes says what a single site's probes found"
            if mode is Mode.NONE
            else "a site's probes are no unit, and noise for one unit does not hide what they found"
        )
        yield f"vetoes: mode {mode.value!r}: {why}: remove this table, or choose mode 'silo'"


def _record_table(plan: Plan) -> Iterator[str]:
    mode, record = Mode(plan.privacy.mode), plan.privacy.record
    if mode not in RECORD_MODES:
        if record is not None:
            yield (
                f"privacy.record: mode {mode.value!r} has no units to sample: remove this table, "
                "or choose 'record_local' or 'record_distributed'"
            )
        return
    if record is None:
        yield (
            f"privacy.record: mode {mode.value!r} samples units: add this table with "
            "sampling_rate, expected_units and steps_per_round"
        )
        return
    if mode is Mode.RECORD_LOCAL and record.delta_clip_l2 is None:
        yield (
            "privacy.record.delta_clip_l2: mode 'record_local' uploads a delta: set the bound of "
            "its L2 norm; the privacy of a unit does not depend on it"
        )
    if mode is Mode.RECORD_DISTRIBUTED and record.delta_clip_l2 is not None:
        yield (
            "privacy.record.delta_clip_l2: mode 'record_distributed' uploads gradients, each "
            "clipped to privacy.clip_l2: remove this key"
        )
    if mode is Mode.RECORD_DISTRIBUTED and record.silo_noise_multiplier > 0.0:
        yield (
            "privacy.record.silo_noise_multiplier: it composes with mode 'record_local' only; one "
            "silo may add up B_max clips here, and noise that hides all of them leaves nothing to "
            "learn: remove this key"
        )
    if mode is Mode.RECORD_DISTRIBUTED:
        releases = plan.rounds.count * record.steps_per_round
        if releases > MAX_RELEASES:
            yield (
                f"privacy.record.steps_per_round: {plan.rounds.count} rounds of "
                f"{record.steps_per_round} steps are {releases} aggregations: keep them within "
                f"{MAX_RELEASES}, with fewer rounds or steps"
            )
    yield from _population(plan, record)


def _population(plan: Plan, record: RecordSection) -> Iterator[str]:
    if not plan.needs_tasks:
        return  # So it has no units.
    # The rate as it is written: in binary 0.07 of 100 would be more than 7.
    expected = Fraction(repr(record.sampling_rate)) * plan.population_cap
    if expected > record.expected_units:
        yield (
            f"privacy.record.expected_units: {record.expected_units} is less than sampling_rate "
            f"{record.sampling_rate:g} times the {plan.population_cap} tasks that a silo can have "
            f"({plan.tasks_per_round} a round, kept for {plan.kept_rounds} rounds): raise it to "
            f"{math.ceil(expected)}, sample less, or lower evolve.window or "
            "evolve.episodes_per_round"
        )


def _ring(plan: Plan, spec: PrivacySpec) -> Iterator[str]:
    release, bits = spec.release, plan.secure_aggregation.ring_bits
    n_min = plan.secure_aggregation.n_min
    path = "privacy.grid"
    sums = [(path, n_min, release.max_units, release.grid, release.noise_multiplier)]
    if spec.mode is Mode.RECORD_LOCAL and spec.record is not None:
        # The grid of a delta is fixed, so only its noise can be too much.
        delta = ("privacy.record.silo_noise_multiplier", *sums[0][1:])
        sums = [delta, (path, 1, spec.record.max_units, spec.grid, spec.noise_multiplier)]
    for key, silos, units, grid, z in sums:
        try:
            no_wrap(silos, units, grid, z * grid, bits)
        except PrivacyError as error:
            batch = f", or privacy.record.expected_units, as B_max is {units}" if units > 1 else ""
            yield f"{key}: {error}{batch}"


def _overflow(plan: Plan, spec: PrivacySpec) -> Iterator[str]:
    # Asked for in every mode: whoever judges a plan that was read can tell what it costs.
    charges = charges_of_run(plan)
    if spec.record is None:
        return
    failure = sum(charge.delta for charge in charges if charge.unit == spec.unit)
    if failure >= spec.delta:
        yield (
            f"privacy.record.expected_units: the steps of this run sample more than B_max = "
            f"{spec.record.max_units} units with probability up to {failure:.3g}, which uses up "
            f"delta = {spec.delta:g}: raise it"
        )
