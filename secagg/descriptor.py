"""Descriptor D: everything an aggregation depends on, signed by the coordinator.

Every party derives its sizes from D and the roster, and every key of the aggregation is bound to
D's digest, so that two silos which hold different descriptors share no key.

`check_descriptor` verifies, in this order: version and suite; the roster it names; the cohort; c, t
and n_min; the ring and the noise; that no sum can wrap; the deadlines. It is what any two parties
must agree on. Not covered: what one site allows (floors and ceilings of its policy), whether the
deadlines have passed, and which aggregation a silo has seen last.
"""

import hashlib
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import bounds, canonical, digest_tree, hybrid, suite
from secagg.errors import Check, MalformedMessageError, ParameterError, VerificationError
from secagg.parameters import Parameters
from secagg.roster import Roster

# A version is one form of the signed messages, with the one suite that it is made for.
BASE_VERSION: Final = 1
HYBRID_VERSION: Final = 2
SUITES: Final = {BASE_VERSION: suite.SUITE, HYBRID_VERSION: hybrid.SUITE}
RING_BITS: Final = 32
NOISE_NONE: Final = "none"
NOISE_DISCRETE_GAUSSIAN: Final = "discrete_gaussian"
NOISE_MECHANISMS: Final = (NOISE_NONE, NOISE_DISCRETE_GAUSSIAN)
# Below this the sum of discrete Gaussians is no longer close to one (Kairouz, Liu and Steinke
# 2021, Proposition 14).
MIN_SIGMA: Final = 4.0
# Standard deviations of noise that the ring leaves room for.
NOISE_TAIL: Final = 12
STEPS: Final = ("advertise_keys", "share_keys", "masked_input", "consistency_check", "unmask")
# Coordinates of the metrics block with these prefixes are figures of one environment family, which
# needs enough silos that declare it; ``other`` is what is left of the families without figures.
EPISODES: Final = "episodes/"
SUCCESSES: Final = "successes/"
OTHER_FAMILY: Final = "other"
_DOMAINS: Final = {
    BASE_VERSION: "chorale/v1/descriptor",
    HYBRID_VERSION: "chorale/v2/descriptor",
}


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class AggregationId:
    """The name of one secure aggregation. Within a run, later ones compare greater."""

    run_id: str
    round: int
    step: int
    # Serves methods that need two sums.
    part: int
    attempt: int

    def __post_init__(self) -> None:
        bounds.require_name(self.run_id, "run_id")
        for name in ("round", "step", "part", "attempt"):
            bounds.require_integer(getattr(self, name), 0, bounds.UINT32_MAX, name)

    def fields(self) -> tuple[canonical.Field, ...]:
        """Return the fields in their signed order."""
        return (self.run_id, self.round, self.step, self.part, self.attempt)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsLayout:
    """The masked coordinates that follow the delta."""

    names: tuple[str, ...]
    # Upper bound of each coordinate in its own unit; the lower bound is zero.
    bounds: tuple[float, ...]
    # Grid units that make up a coordinate's bound; 0 when there are no names.
    grid: int
    # Standard deviation of one silo's noise share, in grid units.
    sigma: float

    def __post_init__(self) -> None:
        bounds.require_sequence(self.names, str, 0, bounds.MAX_METRICS, "metrics names")
        bounds.require_sequence(
            self.bounds, float, len(self.names), len(self.names), "metrics bounds"
        )
        for name, bound in zip(self.names, self.bounds, strict=True):
            bounds.require_name(name, "metrics name")
            bounds.require_real(bound, "metrics bound")
        if len(set(self.names)) != len(self.names):
            raise MalformedMessageError("two metrics share a name")
        bounds.require_integer(self.grid, min(1, len(self.names)), 2**31, "metrics grid")
        bounds.require_real(self.sigma, "metrics sigma", allow_zero=True)

    def fields(self) -> tuple[canonical.Field, ...]:
        """Return the fields in their signed order."""
        return (self.names, self.bounds, self.grid, self.sigma)

    def families(self) -> tuple[str, ...]:
        """Return the families that have a coordinate, in order of their first one."""
        return tuple(
            dict.fromkeys(
                name.removeprefix(prefix)
                for name in self.names
                for prefix in (EPISODES, SUCCESSES)
                if name.startswith(prefix)
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """What the silos of a cohort agree to sum, and how."""

    version: int
    suite: int
    identity: AggregationId
    roster_sha256: bytes
    roster_epoch: int
    # Silo ids in ascending order; silo k holds the shares at x = k + 1.
    cohort: tuple[str, ...]
    # c, copied from the roster.
    colluding: int
    # t, which follows from n and c.
    threshold: int
    # Least number of survivors.
    n_min: int
    plan_sha256: bytes
    base_model_sha256: bytes
    # Head of the published chain that the deltas start from.
    adapter_sha256: bytes
    # Ordered name, shape and dtype of the uploaded factor, hashed.
    layout_sha256: bytes
    # Coordinates of the delta.
    dimension: int
    # L2 clip of one privacy unit.
    unit_clip: float
    # L2 clip of one silo's vector.
    vector_clip: float
    # B_max: clipped vectors that one upload may be a sum of.
    max_units: int
    # s: grid units per unit of the delta.
    scale: float
    metrics: MetricsLayout
    ring_bits: int
    noise_mechanism: str
    # σ_i of the delta's coordinates, in grid units.
    noise_sigma: float
    privacy_spec_sha256: bytes
    # Unix times by which R0 to R4 must have arrived.
    deadlines_unix_s: tuple[int, ...]
    # From version 2 on: the plan's environment families, in ascending order; who declared none of
    # them is not counted as a contributor.
    families: tuple[str, ...] = ()
    # Digest of the round task that this aggregation belongs to.
    task_sha256: bytes = b""
    # Which hash the uploads' digest trees are made with (`digest_tree`).
    digest_id: int = 0

    def __post_init__(self) -> None:
        for name in ("version", "suite", "colluding", "threshold", "n_min", "ring_bits"):
            bounds.require_integer(getattr(self, name), 0, bounds.UINT32_MAX, name)
        for name in ("roster", "plan", "base_model", "adapter", "layout", "privacy_spec"):
            field = f"{name}_sha256"
            bounds.require_bytes(getattr(self, field), bounds.DIGEST_BYTES, field)
        for name in ("unit_clip", "vector_clip", "scale"):
            bounds.require_real(getattr(self, name), name)
        if type(self.identity) is not AggregationId or type(self.metrics) is not MetricsLayout:
            raise MalformedMessageError("identity or metrics is missing")
        bounds.require_integer(self.roster_epoch, 1, bounds.UINT64_MAX, "roster_epoch")
        bounds.require_sequence(self.cohort, str, 1, bounds.MAX_COHORT, "cohort")
        for silo_id in self.cohort:
            bounds.require_silo_id(silo_id, "cohort member")
        bounds.require_integer(self.dimension, 1, bounds.MAX_DIMENSION, "dimension")
        bounds.require_integer(self.max_units, 1, bounds.UINT64_MAX, "max_units")
        bounds.require_name(self.noise_mechanism, "noise_mechanism")
        bounds.require_real(self.noise_sigma, "noise_sigma", allow_zero=True)
        bounds.require_sequence(
            self.deadlines_unix_s, int, len(STEPS), len(STEPS), "deadlines_unix_s"
        )
        for deadline in self.deadlines_unix_s:
            bounds.require_integer(deadline, 1, bounds.UINT64_MAX, "deadline")
        later = self.version >= HYBRID_VERSION
        bounds.require_families(self.families, "descriptor families")
        bounds.require_bytes(self.task_sha256, bounds.DIGEST_BYTES if later else 0, "task_sha256")
        bounds.require_integer(self.digest_id, 0, bounds.UINT32_MAX, "digest_id")
        if later != bool(self.families) or later != bool(self.digest_id):
            raise MalformedMessageError("families and digest_id belong to version 2 and later")

    @property
    def is_hybrid(self) -> bool:
        """Whether masks and boxes hold against a quantum computer (suite v2)."""
        return self.suite == hybrid.SUITE

    def signed_bytes(self) -> bytes:
        """Return what the coordinator signs."""
        later: tuple[canonical.Field, ...] = ()
        if self.version >= HYBRID_VERSION:
            later = (self.families, self.task_sha256, self.digest_id)
        return canonical.encode(
            _DOMAINS.get(self.version, _DOMAINS[HYBRID_VERSION]),
            self.version,
            self.suite,
            self.identity.fields(),
            self.roster_sha256,
            self.roster_epoch,
            self.cohort,
            self.colluding,
            self.threshold,
            self.n_min,
            self.plan_sha256,
            self.base_model_sha256,
            self.adapter_sha256,
            self.layout_sha256,
            self.dimension,
            self.unit_clip,
            self.vector_clip,
            self.max_units,
            self.scale,
            self.metrics.fields(),
            self.ring_bits,
            self.noise_mechanism,
            self.noise_sigma,
            self.privacy_spec_sha256,
            self.deadlines_unix_s,
            *later,
        )

    @property
    def sha256(self) -> bytes:
        """Digest of the signed bytes."""
        return hashlib.sha256(self.signed_bytes()).digest()

    @property
    def words(self) -> int:
        """Ring elements of one upload: the delta, then the metrics block."""
        return self.dimension + len(self.metrics.names)

    @property
    def length_bytes(self) -> int:
        """Exact size of one upload."""
        return self.words * (self.ring_bits // 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedDescriptor:
    """A descriptor with the coordinator's signature, not verified by being one of these."""

    descriptor: Descriptor
    signature: bytes

    def __post_init__(self) -> None:
        bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "descriptor signature")


def sign_descriptor(descriptor: Descriptor, coordinator_key: Ed25519PrivateKey) -> SignedDescriptor:
    """Sign a descriptor as the coordinator."""
    signature = suite.sign(coordinator_key, descriptor.signed_bytes())
    return SignedDescriptor(descriptor=descriptor, signature=signature)


def verify_descriptor(signed: SignedDescriptor, roster: Roster) -> Parameters:
    """Check the coordinator's signature and then the descriptor; gives the aggregation's sizes.

    Raises:
        VerificationError: descriptor_signature, or a check of `check_descriptor`.
    """
    signed_bytes = signed.descriptor.signed_bytes()
    if not suite.verify(roster.coordinator_key, signed.signature, signed_bytes):
        raise VerificationError(
            Check.DESCRIPTOR_SIGNATURE, "the descriptor is not signed by the coordinator"
        )
    return check_descriptor(signed.descriptor, roster)


def check_descriptor(descriptor: Descriptor, roster: Roster) -> Parameters:
    """Check a descriptor against the roster and the protocol; gives the aggregation's sizes.

    Raises:
        VerificationError: The first check that fails.
    """
    if SUITES.get(descriptor.version) != descriptor.suite:
        raise VerificationError(Check.DESCRIPTOR_VERSION, "unknown version or suite")
    if descriptor.version >= HYBRID_VERSION and descriptor.digest_id not in digest_tree.DIGESTS:
        raise VerificationError(Check.DESCRIPTOR_VERSION, "unknown digest of the uploads")
    if (descriptor.roster_sha256, descriptor.roster_epoch) != (roster.sha256, roster.epoch):
        raise VerificationError(Check.DESCRIPTOR_ROSTER, "the descriptor names another roster")
    if not bounds.is_strictly_sorted(descriptor.cohort):
        raise VerificationError(Check.COHORT, "the cohort is not in ascending order of silo id")
    if not set(descriptor.cohort) <= set(roster.silo_ids):
        raise VerificationError(Check.COHORT, "the cohort holds a silo that is not in the roster")
    parameters = _check_sizes(descriptor, roster)
    if descriptor.ring_bits != RING_BITS:
        raise VerificationError(Check.RING, f"the ring has {RING_BITS} bits")
    _check_noise(descriptor)
    _check_no_wrap(descriptor)
    deadlines = itertools.pairwise(descriptor.deadlines_unix_s)
    if not all(earlier < later for earlier, later in deadlines):
        raise VerificationError(Check.DEADLINES, "the five deadlines do not increase")
    return parameters


def _check_sizes(descriptor: Descriptor, roster: Roster) -> Parameters:
    n = len(descriptor.cohort)
    if n < descriptor.n_min:
        raise VerificationError(Check.COHORT_SIZE, f"{n} silos where {descriptor.n_min} are needed")
    if descriptor.colluding != roster.colluding:
        raise VerificationError(Check.POLICY_THRESHOLD, "c differs from the roster's")
    try:
        parameters = Parameters(n=n, c=descriptor.colluding, n_min=descriptor.n_min)
    except ParameterError as error:
        raise VerificationError(Check.POLICY_THRESHOLD, str(error)) from error
    if descriptor.threshold != parameters.t:
        raise VerificationError(
            Check.POLICY_THRESHOLD, f"t = {descriptor.threshold} where {parameters.t} follows"
        )
    return parameters


def _check_noise(descriptor: Descriptor) -> None:
    if descriptor.noise_mechanism not in NOISE_MECHANISMS:
        raise VerificationError(Check.NOISE, "unknown noise mechanism")
    noiseless = descriptor.noise_mechanism == NOISE_NONE
    blocks = [("delta", descriptor.noise_sigma, noiseless)]
    # An empty metrics block has no coordinate to put noise on; beside a delta without noise, which
    # may have been protected before it was masked, the block may have noise of its own or none.
    empty = not descriptor.metrics.names or (noiseless and descriptor.metrics.sigma == 0.0)
    blocks.append(("metrics", descriptor.metrics.sigma, empty))
    for name, sigma, must_be_zero in blocks:
        if must_be_zero and sigma != 0.0:
            raise VerificationError(Check.NOISE, f"σ of the {name} block must be zero")
        if not must_be_zero and sigma < MIN_SIGMA:
            raise VerificationError(Check.NOISE, f"σ of the {name} block is below {MIN_SIGMA}")


def _check_no_wrap(descriptor: Descriptor) -> None:
    # n·B_max·(Δ+1) + 12σ_max < 2^31 with Δ = C·s; σ_max = σ_i·√n is the noise of a whole sum.
    n = len(descriptor.cohort)
    delta = Fraction(descriptor.vector_clip) * Fraction(descriptor.scale)
    blocks = {
        "delta": (descriptor.max_units * (delta + 1), descriptor.noise_sigma),
        "metrics": (Fraction(descriptor.metrics.grid + 1), descriptor.metrics.sigma),
    }
    for name, (per_silo, sigma) in blocks.items():
        # In rationals, so that no finite σ can overflow on the way to the comparison.
        tail = NOISE_TAIL * Fraction(sigma) * Fraction(math.sqrt(n))
        if n * per_silo + tail >= 2 ** (RING_BITS - 1):
            raise VerificationError(Check.NO_WRAP, f"the {name} block could wrap around the ring")


def check_identity(identity: AggregationId, newest: AggregationId | None) -> None:
    """Refuse an aggregation that is not strictly newer than the newest seen in its run.

    `newest` is of the same run in the silo's durable ledger; None before the first.

    Raises:
        VerificationError: identity.
        ParameterError: `newest` belongs to another run.
    """
    if newest is None:
        return
    if newest.run_id != identity.run_id:
        raise ParameterError("aggregations of different runs have no order")
    if not newest < identity:
        raise VerificationError(Check.IDENTITY, "the aggregation is not newer than one seen before")
