"""What a plan would cost and protect, before anything starts: ``chorale run plan``.

Everything here is a function of the plan, the roster's n and c, and the number of trained
parameters. Privacy figures come from ``dp``; nothing is re-derived.

Covered: threshold, noise, ε per round and for the run with its spare attempts for each unit kind,
the predicted cosine and the silos or the batch it would take (``federation.forecast.signal``),
bytes, ring headroom, and every reason not to start. Not covered: the same plan in other modes
(``federation.forecast.alternatives``); what single sites refuse; each silo's guardian and ledger
decide for themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dp.accounting.charge import UnitKind
from dp.accounting.compose import Epsilon
from dp.accounting.snr import threshold_divisor
from dp.config import Mode, PrivacySpec
from dp.errors import PrivacyError
from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import NOISE_TAIL_SIGMAS, metrics_sigma, no_wrap, per_silo_sigma, summed_sigma
from federation.adapter.layout import Layout
from federation.aggregate.registry import GROUP_METHODS, GROUP_OPTIMISERS
from federation.chain.sums import figures_of
from federation.errors import PlanError
from federation.forecast.groups import GroupCost, cost_of_groups, most_groups
from federation.forecast.signal import Signal
from federation.plan.charges import epsilon_of_round, epsilon_of_run, units_of
from federation.plan.plan import Plan
from federation.plan.rules import problems_of_time
from secagg.descriptor import OTHER_FAMILY

METRICS_GRID: Final = 2**16
"""Δ of the metrics block."""
_WORD_BYTES: Final = 4
_PROTOCOL_BYTES_PER_SILO: Final = 1024
_HEADER_BYTES_PER_PAIR: Final = 128
"""Digests of one sender's box for one recipient, which every silo receives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """The plan's figures for one cohort size."""

    silos: int
    """n."""
    asked: int
    """Those of them that a round asks, whom every other figure is about; n but for a selection."""
    colluding: int
    """c, from the roster."""
    threshold: int
    """t."""
    drops: int
    """Silos that may drop at any step; negative if the cohort is too small. With groups t and this
    are those of the least of them."""
    mode: str
    """What is protected, and where the noise is added."""
    noise_multiplier: float
    """z: of a delta in ``silo``, of a step in the record-level modes."""
    silo_sigma: float
    """σ_i of each coordinate of an upload, in grid units; 0 where the upload adds no noise."""
    metrics_silo_sigma: float
    """σ_i of each coordinate of the metrics block, in its grid units."""
    releases: int
    """Aggregations of the run: T, or T·S in ``record_distributed``."""
    charged_releases: int
    """Attempts that the total is stated for: the releases and the spare ones."""
    epsilon_round: Mapping[UnitKind, Epsilon]
    """ε of one round without a failed attempt at the plan's δ, by unit; inf without noise."""
    epsilon_total: Mapping[UnitKind, Epsilon]
    """ε of all charged attempts, by unit; the units inside a protected one included."""
    predicted_cosine: float
    """Upper bound on the cosine between the noisy and the noiseless mean of one step."""
    silos_for_min_cosine: int | None
    """Least n whose predicted cosine reaches the plan's ``min_cosine``; None if there is none."""
    units_for_min_cosine: int | None
    """Least B̄ that does, with these silos and the same sampling rate; record level only."""
    max_units: int
    """B_max: units that one silo may sum; 1 where it uploads a delta."""
    bytes_up: int
    """Upload of one silo in one round."""
    bytes_down: int
    """Download of one silo in one round."""
    ring_headroom_bits: float
    """Bits between the largest reach of a sum and the ring's; negative if it could wrap."""
    groups: GroupCost | None
    """What the plan's groups cost; None without groups."""
    most_groups: GroupCost | None
    """The most groups that the roster allows this plan; None where it allows none, or where the
    plan may have none."""
    refusals: tuple[str, ...]
    """Every reason not to start; empty if the run may."""


def shared_dimension(plan: Plan, layout: Layout) -> int:
    """The largest number of coordinates that any round of the plan uploads."""
    aggregator = plan.aggregator(layout)
    return max(aggregator.shared_layout(round_number).dimension for round_number in (1, 2))


def forecast_plan(
    plan: Plan,
    *,
    silos: int,
    colluding: int,
    dimension: int,
    adapter_dimension: int | None = None,
) -> Forecast:
    """Work out a plan for ``silos`` silos of which ``colluding`` may collude, each at least one.

    ``dimension`` counts the coordinates uploaded per release (``shared_dimension``),
    ``adapter_dimension`` those of the whole adapter, as many when not given.

    Raises:
        PlanError: If the cohort or a dimension is not positive.
    """
    if min(silos, colluding, dimension) < 1:
        raise PlanError(["forecast: silos, colluding and dimension must be at least one"])
    refusals: list[str] = []
    spec = plan.spec
    release = spec.release
    asked = plan.asked_of(silos)
    # With groups the least of them is what each figure of a sum is about.
    members = max(asked // plan.groups, 1)
    t = _threshold(plan, silos, members, colluding, refusals)
    divisor = max(t, plan.secure_aggregation.n_min) - colluding
    block = _block(plan)
    sigma = _sigma(spec, divisor, refusals)
    figures_sigma = _metrics_sigma(plan, spec, block, divisor, refusals)
    _resolution(spec, dimension, refusals)
    summed = -(-asked // plan.groups)
    _ring(release.max_units, release.grid, summed_sigma(sigma, summed), summed, refusals)
    _ring(1, METRICS_GRID, summed_sigma(figures_sigma, summed), summed, refusals)
    _vetoes(plan, summed_sigma(figures_sigma, asked) / (block.scale * asked or 1), refusals)
    epsilon_total = epsilon_of_run(plan)
    _privacy(plan, spec, epsilon_total, refusals)
    refusals.extend(problems_of_time(plan))
    n_min = plan.secure_aggregation.n_min
    signal = Signal(
        spec=spec,
        dimension=dimension,
        colluding=colluding,
        n_min=n_min,
        groups=plan.aggregation.groups,
    )
    needed = signal.silos_needed(plan.privacy.min_cosine)
    units = signal.units_needed(plan.privacy.min_cosine, asked)
    cosine = signal.cosine(asked)
    if cosine < plan.privacy.min_cosine and not plan.privacy.accept_low_cosine:
        refusals.append(_too_noisy(plan, cosine, asked, needed, units))
    up, down = _bytes(dimension, adapter_dimension or dimension, block.size, summed)
    # Every silo verifies the update from the sums of all groups.
    down += (plan.groups - 1) * _WORD_BYTES * (dimension + block.size)
    reach = summed * release.max_units * (release.grid + 1)
    return Forecast(
        silos=silos,
        asked=asked,
        colluding=colluding,
        threshold=t,
        drops=members - divisor - colluding,
        mode=spec.mode.value,
        noise_multiplier=spec.noise_multiplier,
        silo_sigma=sigma,
        metrics_silo_sigma=figures_sigma,
        releases=plan.releases,
        charged_releases=plan.charged_releases,
        epsilon_round=epsilon_of_round(spec),
        epsilon_total=epsilon_total,
        predicted_cosine=cosine,
        silos_for_min_cosine=needed,
        units_for_min_cosine=units,
        max_units=release.max_units,
        bytes_up=up * spec.sums_per_round,
        bytes_down=down * spec.sums_per_round,
        ring_headroom_bits=plan.secure_aggregation.ring_bits
        - 1
        - math.log2(reach + NOISE_TAIL_SIGMAS * summed_sigma(sigma, summed)),
        groups=cost_of_groups(plan, silos=asked, colluding=colluding),
        most_groups=(
            most_groups(plan, silos=asked, colluding=colluding) if _may_group(plan) else None
        ),
        refusals=tuple(refusals),
    )


def _may_group(plan: Plan) -> bool:
    """Whether the plan has groups, or may have them as it is."""
    section = plan.aggregation
    return section.groups is not None or (
        plan.spec.mode is not Mode.NONE
        and section.method in GROUP_METHODS
        and section.server_optimiser in GROUP_OPTIMISERS
    )


def _threshold(plan: Plan, silos: int, members: int, colluding: int, refusals: list[str]) -> int:
    try:
        plan.require_cohort(silos, colluding)
    except PlanError as error:
        refusals.extend(error.problems)
    # The formula has a value for every cohort, with which the other figures can be shown.
    return threshold_divisor(members, colluding=colluding) + colluding


def _block(plan: Plan) -> MetricsBlock:
    """The largest metrics block that the plan's environments can make."""
    if not plan.has_figures:
        return MetricsBlock.of((), ())
    explored = plan.evolve.episodes_per_round > 0
    families = (*plan.evolve.environments, OTHER_FAMILY) if explored else ()
    names, bounds = figures_of(plan, families)
    return MetricsBlock(names=names, bounds=bounds, grid=METRICS_GRID)


def _vetoes(plan: Plan, error: float, refusals: list[str]) -> None:
    """Whether the vetoes of all silos would show; ``error`` is that of the mean."""
    if plan.vetoes is not None and plan.vetoes.errors * error > 1.0:
        refusals.append(
            f"vetoes: noise moves the mean by {error:.2g} either way, so the run would not pause "
            f"though every silo vetoes ({plan.vetoes.errors:g} standard errors are more than 1): "
            "more silos, a lower privacy.metrics_noise_multiplier, or fewer environments"
        )


def _sigma(spec: PrivacySpec, divisor: int, refusals: list[str]) -> float:
    release = spec.release
    try:
        # Only max(t, n_min) − c enters the formula.
        return per_silo_sigma(release.noise_multiplier, release.grid, divisor, divisor, 0)
    except PrivacyError as error:
        refusals.append(f"noise: {error}")
        return release.noise_multiplier * release.grid / math.sqrt(divisor)


def _metrics_sigma(
    plan: Plan, spec: PrivacySpec, block: MetricsBlock, divisor: int, refusals: list[str]
) -> float:
    try:
        return metrics_sigma(
            spec, block, tries=plan.evolve.tries_per_task, t=divisor, n_min=divisor, c=0
        )
    except PrivacyError as error:
        refusals.append(f"metrics noise: {error}")
        return math.nan


def _resolution(spec: PrivacySpec, dimension: int, refusals: list[str]) -> None:
    release = spec.release
    vectors = [("privacy.grid", spec.clip_l2, spec.grid)]
    if (release.clip_l2, release.grid) != (spec.clip_l2, spec.grid):
        vectors.append(("privacy.record.delta_clip_l2", release.clip_l2, release.grid))
    for path, clip_l2, grid in vectors:
        try:
            Grid(clip_l2=clip_l2, steps=grid, dimension=dimension)
        except PrivacyError as error:
            refusals.append(f"{path}: {error}")


def _ring(units: int, grid: int, noise: float, silos: int, refusals: list[str]) -> None:
    if math.isnan(noise):
        return  # There is no block to sum, and the reason is among the refusals.
    try:
        no_wrap(silos, units, grid, noise)
    except PrivacyError as error:
        refusals.append(f"ring: {error}")


def _privacy(
    plan: Plan, spec: PrivacySpec, totals: Mapping[UnitKind, Epsilon], refusals: list[str]
) -> None:
    if spec.mode is Mode.NONE:
        return
    for unit in units_of(spec):
        total = totals[unit].epsilon
        if total > spec.epsilon_cap:
            refusals.append(
                f"privacy.epsilon_cap is {spec.epsilon_cap:.6g} but {plan.charged_releases} "
                f"attempts reach epsilon {total:.6g} for a {unit} at delta {spec.delta:g}: add "
                "noise, plan fewer rounds or steps, sample less, or raise the cap"
            )


def _too_noisy(plan: Plan, cosine: float, silos: int, needed: int | None, units: int | None) -> str:
    more = "use {} silos" if plan.selection.count is None else "ask {} silos (selection.count)"
    ways = [] if needed is None else [more.format(needed)]
    if units is not None:
        ways.append(f"raise privacy.record.expected_units to {units} and explore as much more")
    ways += [
        "train fewer parameters (model.lora_rank, model.target)",
        "add less noise",
        "or set privacy.accept_low_cosine",
    ]
    return (
        f"privacy.min_cosine is {plan.privacy.min_cosine:g} but the predicted cosine with {silos} "
        f"silos is {cosine:.3g} at best: {', '.join(ways)}"
    )


def _bytes(dimension: int, adapter_dimension: int, block: int, silos: int) -> tuple[int, int]:
    """Up and down for one silo and one release."""
    up = _WORD_BYTES * (dimension + block) + _PROTOCOL_BYTES_PER_SILO * silos
    down = up + _WORD_BYTES * adapter_dimension + _HEADER_BYTES_PER_PAIR * silos * silos
    return up, down
