"""What a silo brings to an aggregation, and the checks before its first message."""

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import bounds, digest_tree, hybrid, suite
from secagg.descriptor import (
    AggregationId,
    Descriptor,
    SignedDescriptor,
    check_identity,
    verify_descriptor,
)
from secagg.errors import Check, VerificationError
from secagg.hybrid import Encapsulate
from secagg.messages import NO_DEBIT, DebitHead
from secagg.parameters import Parameters
from secagg.roster import Roster, SignedRoster
from secagg.suite import Entropy


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerHead:
    """Where the silo's privacy ledger stands."""

    seq: int
    sha256: bytes

    def __post_init__(self) -> None:
        bounds.require_integer(self.seq, 0, bounds.UINT64_MAX, "ledger seq")
        bounds.require_bytes(self.sha256, bounds.DIGEST_BYTES, "ledger sha256")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSetup:
    """Everything one silo needs to begin one aggregation."""

    silo_id: str
    # Signs protocol messages; its public half is in the roster.
    signing_key: Ed25519PrivateKey = field(repr=False)
    # Already accepted by `verify_roster`.
    roster: SignedRoster
    # As received; `begin` verifies it.
    descriptor: SignedDescriptor
    ledger_head: LedgerHead
    # Newest aggregation of this run in the silo's durable ledger; None before the first.
    newest_identity: AggregationId | None
    # The base model this silo loaded.
    base_model_sha256: bytes
    # Head of the published chain as this silo has adopted it.
    adapter_sha256: bytes
    # Environment families this silo declares, in ascending order: public.
    families: tuple[str, ...]
    # os.urandom outside tests.
    entropy: Entropy = field(repr=False)
    # What this site accepts.
    suites: frozenset[int]
    # The rest matters in suite v2 alone.
    # Newest charge in the silo's ledger.
    debit_head: DebitHead = NO_DEBIT
    # Whether this site lets the cohorts of a run without noise vary.
    cohort_may_vary: bool = False
    # Digest of the round task that this silo verified.
    task_sha256: bytes = b""
    # Environment families of the plan as this silo read it, in ascending order.
    families_of_plan: tuple[str, ...] = ()
    # The library's outside tests.
    encapsulate: Encapsulate = field(default=hybrid.encapsulate, repr=False)

    def __post_init__(self) -> None:
        bounds.require_families(self.families, "declared families")
        bounds.require_families(self.families_of_plan, "families of the plan")


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """What stays the same through all states of one silo's part in one aggregation."""

    silo_id: str
    signing_key: Ed25519PrivateKey = field(repr=False)
    roster: Roster
    descriptor: Descriptor
    parameters: Parameters
    entropy: Entropy = field(repr=False)
    encapsulate: Encapsulate = field(repr=False)

    @property
    def identity(self) -> AggregationId:
        """The aggregation's name."""
        return self.descriptor.identity

    def sign(self, signed_bytes: bytes) -> bytes:
        """Sign as this silo."""
        return suite.sign(self.signing_key, signed_bytes)


def check_setup(setup: ClientSetup) -> Membership:
    """Make the checks of R0, in order: D, suite, membership, identity, model, and task and plan.

    Raises:
        VerificationError: A descriptor check, suite, membership, identity, model, task or
            contributors.
    """
    roster, descriptor = setup.roster.roster, setup.descriptor.descriptor
    parameters = verify_descriptor(setup.descriptor, roster)
    _check_suite(setup, descriptor)
    entry = roster.entry(setup.silo_id)
    if setup.silo_id not in descriptor.cohort or entry is None:
        raise VerificationError(Check.MEMBERSHIP, "this silo is not in the cohort")
    if entry.verification_key != suite.verification_key(setup.signing_key):
        raise VerificationError(Check.MEMBERSHIP, "the roster has another key for this silo")
    check_identity(descriptor.identity, setup.newest_identity)
    if descriptor.base_model_sha256 != setup.base_model_sha256:
        raise VerificationError(Check.MODEL, "the descriptor names another base model")
    if descriptor.adapter_sha256 != setup.adapter_sha256:
        raise VerificationError(Check.MODEL, "the descriptor starts from another adapter")
    if descriptor.is_hybrid and descriptor.task_sha256 != setup.task_sha256:
        raise VerificationError(Check.TASK, "the descriptor belongs to another round task")
    if descriptor.is_hybrid and descriptor.families != setup.families_of_plan:
        raise VerificationError(Check.CONTRIBUTORS, "the descriptor has not the plan's families")
    return Membership(
        silo_id=setup.silo_id,
        signing_key=setup.signing_key,
        roster=roster,
        descriptor=descriptor,
        parameters=parameters,
        entropy=setup.entropy,
        encapsulate=setup.encapsulate,
    )


def _check_suite(setup: ClientSetup, descriptor: Descriptor) -> None:
    if descriptor.suite not in setup.suites:
        raise VerificationError(Check.SUITE, f"this site does not accept suite v{descriptor.suite}")
    if not descriptor.is_hybrid:
        return
    if not hybrid.is_available():
        raise VerificationError(Check.SUITE, "this machine's library has no ML-KEM-768")
    if not digest_tree.is_available(descriptor.digest_id):
        raise VerificationError(Check.SUITE, "this machine cannot make the uploads' digests")
