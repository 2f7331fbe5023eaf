"""The round task: what a coordinator asks of every silo before training, signed.

It names the plan, the roster, the base model and the head of the adapter chain, and nothing that
depends on anyone's data. Rounds count from one, steps of a round from zero. Where each step is an
aggregation of its own (``record_distributed``), a task for a later step invites to that step alone:
nobody explores twice in a round.

Covered: bounds, the signed bytes, signing and verifying.
Not covered: whether a silo agrees (its guardian), whether the deadline has passed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.aggregate.rounds import FIRST_ROUND
from federation.errors import ChainError
from secagg import bounds, canonical, suite
from secagg.errors import MalformedMessageError

TASK_DOMAIN: Final = "chorale/v1/round-task"
INVITING_TASK_DOMAIN: Final = "chorale/v2/round-task"
MOVED_TASK_DOMAIN: Final = "chorale/v3/round-task"

MAX_LOCAL_EPOCHS: Final = 100
"""As in a plan."""

SURVIVORS_ALREADY_SIGNED: Final = "survivors_already_signed"
"""Public reason of a silo that signed R3 of an earlier attempt of the round."""
OUTSIDE_HOURS: Final = "the site's policy does not allow a round at this time"
CLOCKS_DISAGREE: Final = "the task's deadline does not fit its plan and this silo's clock"
ATTEMPTS_USED_UP: Final = "the site's policy does not allow another attempt today"
APPROVAL_PENDING: Final = "this silo's operator has not approved the run yet"
PASSING_REASONS: Final = frozenset(
    {OUTSIDE_HOURS, CLOCKS_DISAGREE, ATTEMPTS_USED_UP, APPROVAL_PENDING}
)
"""Public reasons that may pass before the deadline: another hour, a new deadline, another day,
somebody who approves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTask:
    """One round's invitation to train."""

    run_id: str
    """The run."""
    round: int
    """From one."""
    plan_sha256: bytes
    """Of the plan's TOML bytes."""
    roster_sha256: bytes
    """Of the roster in force."""
    roster_epoch: int
    """Its epoch."""
    base_model_sha256: bytes
    """The frozen base."""
    adapter_sha256: bytes
    """The published bytes to start from."""
    ready_deadline_unix_s: int
    """By when a silo must report ready."""
    step: int = 0
    """The step of the round; the record before it is the head that this task starts from."""
    invited: tuple[str, ...] = ()
    """From protocol 3 on: the silos that may take part, in ascending order; nobody else does."""
    local_epochs: int = 0
    """Where the plan's ranges let a round move them, how often its silos play and train; else 0."""
    signature: bytes = b""
    """Of the coordinator; empty until signed."""

    def __post_init__(self) -> None:
        """Refuse what is out of bounds, whoever made it."""
        try:
            bounds.require_name(self.run_id, "task run_id")
            bounds.require_integer(self.round, FIRST_ROUND, bounds.UINT32_MAX, "task round")
            bounds.require_integer(self.step, 0, bounds.UINT32_MAX, "task step")
            for name in ("plan", "roster", "base_model", "adapter"):
                field = f"{name}_sha256"
                bounds.require_bytes(getattr(self, field), bounds.DIGEST_BYTES, f"task {field}")
            bounds.require_integer(self.roster_epoch, 1, bounds.UINT64_MAX, "task roster_epoch")
            bounds.require_integer(
                self.ready_deadline_unix_s, 1, bounds.UINT64_MAX, "task ready_deadline_unix_s"
            )
            bounds.require_sequence(self.invited, str, 0, bounds.MAX_COHORT, "task invited")
            for silo_id in self.invited:
                bounds.require_silo_id(silo_id, "task invited silo")
            if not bounds.is_strictly_sorted(self.invited):
                raise ChainError("the silos that a task invites are not in ascending order")
            bounds.require_integer(self.local_epochs, 0, MAX_LOCAL_EPOCHS, "task local_epochs")
            if self.local_epochs and not self.invited:
                raise ChainError("a task that moves local epochs names whom it invites")
            if self.signature:
                bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "task signature")
        except MalformedMessageError as error:
            raise ChainError(str(error)) from error

    def signed_bytes(self) -> bytes:
        """What the coordinator signs."""
        domain = INVITING_TASK_DOMAIN if self.invited else TASK_DOMAIN
        return canonical.encode(
            MOVED_TASK_DOMAIN if self.local_epochs else domain,
            self.run_id,
            self.round,
            self.step,
            self.plan_sha256,
            self.roster_sha256,
            self.roster_epoch,
            self.base_model_sha256,
            self.adapter_sha256,
            self.ready_deadline_unix_s,
            *((self.invited,) if self.invited else ()),
            *((self.local_epochs,) if self.local_epochs else ()),
        )

    @property
    def sha256(self) -> bytes:
        """Digest of the signed bytes, which a descriptor of version 2 names."""
        return hashlib.sha256(self.signed_bytes()).digest()

    def sign(self, coordinator_key: Ed25519PrivateKey) -> RoundTask:
        """The same task with the coordinator's signature."""
        return replace(self, signature=suite.sign(coordinator_key, self.signed_bytes()))

    def verify(self, coordinator_public_key: bytes) -> None:
        """Check the signature.

        Raises:
            ChainError: If it is missing or not the coordinator's.
        """
        if not suite.verify(coordinator_public_key, self.signature, self.signed_bytes()):
            raise ChainError(
                f"the task of round {self.round} step {self.step} is not signed by the roster's "
                "coordinator"
            )
