"""What a plan would cost and protect, before anything starts: ``chorale run plan``.

Everything here is a function of the plan, the roster's n and c, and the number of trained
parameters. Privacy figures come from ``dp``; nothing is re-derived.

Covered: threshold, noise, ε per round and for the run with its spare attempts, the predicted
cosine and the silos it would take, bytes, ring headroom, and every reason not to start.
Not covered: what single sites refuse; each silo's guardian and ledger decide for themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dp.config import Mode
from dp.errors import PrivacyError
from dp.grid import Grid
from dp.metrics_block import MetricsBlock
from dp.rdp import epsilon, rdp_gaussian
from dp.share import NOISE_TAIL_SIGMAS, no_wrap, per_silo_sigma, summed_sigma
from dp.snr import predicted_cosine, silos_needed, threshold_divisor
from federation.errors import PlanError
from federation.layout import Layout
from federation.plan import Plan

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
    colluding: int
    """c, from the roster."""
    threshold: int
    """t."""
    drops: int
    """Silos that may drop at any step; negative if the cohort is too small."""
    silo_sigma: float
    """σ_i of each coordinate of the delta, in grid units."""
    metrics_silo_sigma: float
    """σ_i of each coordinate of the metrics block, in its grid units."""
    joint_noise_multiplier: float
    """z that a round's delta and metrics are charged with together; 0 without noise."""
    charged_attempts: int
    """Attempts that the total is stated for: T and the spare ones."""
    epsilon_round: float
    """Silo-level ε of one attempt at the plan's δ; inf without noise."""
    epsilon_total: float
    """Silo-level ε of all charged attempts."""
    predicted_cosine: float
    """Upper bound on the cosine between the noisy and the noiseless mean."""
    silos_for_min_cosine: int
    """Least n whose predicted cosine reaches the plan's ``min_cosine``."""
    bytes_up: int
    """Upload of one silo in one round."""
    bytes_down: int
    """Download of one silo in one round."""
    ring_headroom_bits: float
    """Bits between the largest reach of a sum and the ring's; negative if it could wrap."""
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
    metrics_coordinates: int | None = None,
) -> Forecast:
    """Work out a plan for ``silos`` silos of which ``colluding`` may collude.

    Args:
        plan: The run's plan.
        silos: Cohort size n, at least one.
        colluding: c of the roster, at least one.
        dimension: Coordinates uploaded per round (``shared_dimension``).
        adapter_dimension: Coordinates of the whole adapter; ``dimension`` when not given.
        metrics_coordinates: Size of the metrics block; when not given, the largest that the
            plan's environments can make.

    Raises:
        PlanError: If the cohort or a dimension is not positive.
    """
    if min(silos, colluding, dimension) < 1:
        raise PlanError(["forecast: silos, colluding and dimension must be at least one"])
    refusals: list[str] = []
    t = _threshold(plan, silos, colluding, refusals)
    divisor = max(t, plan.secure_aggregation.n_min) - colluding
    block = metrics_coordinates or 1 + 2 * (len(plan.evolve.environments) + 1)
    sigma = _sigma(plan.privacy.noise_multiplier, plan.privacy.grid, divisor, refusals)
    metrics_sigma = _sigma(plan.privacy.metrics_noise_multiplier, METRICS_GRID, divisor, refusals)
    _resolution(plan, dimension, block, refusals)
    _ring(plan, silos, sigma, metrics_sigma, refusals)
    joint = plan.privacy_spec().joint_noise_multiplier
    epsilon_total = _epsilon(joint, plan.rounds.charged_attempts, plan.privacy.delta)
    _privacy(plan, epsilon_total, refusals)
    cosine = predicted_cosine(
        noise_multiplier=plan.privacy.noise_multiplier,
        dimension=dimension,
        silos=silos,
        divisor=divisor,
    )
    needed = _silos_needed(plan, dimension, colluding)
    _gate(plan, cosine, needed, silos, refusals)
    vector_bytes = _WORD_BYTES * (dimension + block)
    protocol_bytes = _PROTOCOL_BYTES_PER_SILO * silos
    reach = silos * (plan.privacy.grid + 1) + NOISE_TAIL_SIGMAS * summed_sigma(sigma, silos)
    return Forecast(
        silos=silos,
        colluding=colluding,
        threshold=t,
        drops=silos - divisor - colluding,
        silo_sigma=sigma,
        metrics_silo_sigma=metrics_sigma,
        joint_noise_multiplier=joint,
        charged_attempts=plan.rounds.charged_attempts,
        epsilon_round=_epsilon(joint, 1, plan.privacy.delta),
        epsilon_total=epsilon_total,
        predicted_cosine=cosine,
        silos_for_min_cosine=needed,
        bytes_up=vector_bytes + protocol_bytes,
        bytes_down=_WORD_BYTES * (adapter_dimension or dimension)
        + vector_bytes
        + protocol_bytes
        + _HEADER_BYTES_PER_PAIR * silos * silos,
        ring_headroom_bits=plan.secure_aggregation.ring_bits - 1 - math.log2(reach),
        refusals=tuple(refusals),
    )


def _threshold(plan: Plan, silos: int, colluding: int, refusals: list[str]) -> int:
    try:
        plan.require_cohort(silos, colluding)
    except PlanError as error:
        refusals.extend(error.problems)
    # The formula has a value for every cohort, with which the other figures can be shown.
    return threshold_divisor(silos, colluding=colluding) + colluding


def _sigma(noise_multiplier: float, grid: int, divisor: int, refusals: list[str]) -> float:
    try:
        # Only max(t, n_min) − c enters the formula.
        return per_silo_sigma(noise_multiplier, grid, divisor, divisor, 0)
    except PrivacyError as error:
        refusals.append(f"noise: {error}")
        return noise_multiplier * grid / math.sqrt(divisor)


def _resolution(plan: Plan, dimension: int, block: int, refusals: list[str]) -> None:
    try:
        Grid(clip_l2=plan.privacy.clip_l2, steps=plan.privacy.grid, dimension=dimension)
        MetricsBlock(
            tuple(f"coordinate-{index}" for index in range(block)), (1.0,) * block, METRICS_GRID
        )
    except PrivacyError as error:
        refusals.append(f"privacy.grid: {error}")


def _ring(plan: Plan, silos: int, sigma: float, metrics_sigma: float, refusals: list[str]) -> None:
    for grid, share in ((plan.privacy.grid, sigma), (METRICS_GRID, metrics_sigma)):
        try:
            no_wrap(silos, 1, grid, summed_sigma(share, silos), plan.secure_aggregation.ring_bits)
        except PrivacyError as error:
            refusals.append(f"ring: {error}")


def _privacy(plan: Plan, epsilon_total: float, refusals: list[str]) -> None:
    spec = plan.privacy_spec()
    try:
        spec.require_supported()
    except PrivacyError as error:
        refusals.append(f"privacy.mode: {error}")
    if spec.mode is not Mode.NONE and epsilon_total > plan.privacy.epsilon_cap:
        refusals.append(
            f"privacy.epsilon_cap is {plan.privacy.epsilon_cap:.6g} but "
            f"{plan.rounds.charged_attempts} attempts reach epsilon {epsilon_total:.6g} at delta "
            f"{plan.privacy.delta:g}: add noise, plan fewer rounds, or raise the cap"
        )


def _gate(plan: Plan, cosine: float, needed: int, silos: int, refusals: list[str]) -> None:
    privacy = plan.privacy
    if cosine < privacy.min_cosine and not privacy.accept_low_cosine:
        refusals.append(
            f"privacy.min_cosine is {privacy.min_cosine:g} but the predicted cosine with {silos} "
            f"silos is {cosine:.3g} at best: use {needed} silos, train fewer parameters, add less "
            "noise, or set privacy.accept_low_cosine"
        )


def _silos_needed(plan: Plan, dimension: int, colluding: int) -> int:
    least = max(plan.secure_aggregation.n_min, colluding + 2)
    if plan.privacy.min_cosine == 0.0 or plan.privacy.noise_multiplier == 0.0:
        return least
    n_min = plan.secure_aggregation.n_min
    needed = silos_needed(
        min_cosine=plan.privacy.min_cosine,
        noise_multiplier=plan.privacy.noise_multiplier,
        dimension=dimension,
        divisor=lambda n: max(threshold_divisor(n, colluding=colluding), n_min - colluding),
    )
    return max(least, needed)


def _epsilon(joint: float, steps: int, delta: float) -> float:
    return math.inf if joint == 0.0 else epsilon(rdp_gaussian(joint, steps), delta)
