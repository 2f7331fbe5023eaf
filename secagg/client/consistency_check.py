"""R2 sent, waiting for the survivors; signs U3 once.

Verified in order: U3 comes in order without repeats (so nobody is listed twice) and is a part of
U2; this silo is in it, with the header it signed; |U3| >= max(t, n_min) and |U3| - c >= 2; every
header's signature, which shows that its silo saw the same U2, and its length.

In suite v2 then: each charge is newer than its silo's ledger of R0; no survivor masked without the
pair secret of another; enough of them declared a family of the plan, and each family with
coordinates.
"""

from secagg import transcript
from secagg.client.peers import Peers
from secagg.client.setup import Membership
from secagg.client.state import ClientState
from secagg.client.unmask import Unmask
from secagg.client.vault import Vault
from secagg.errors import Check, VerificationError
from secagg.messages import ConsistencySignature, MaskedInputHeader, Survivors, agreement_bytes
from secagg.transcript import Members
from secagg.verification import check_ordered_subset, check_survivors, check_upload_header


class ConsistencyCheck(ClientState):
    """Holds the shares received; the mask keys are gone."""

    __slots__ = ("_header", "_leaves", "_members", "_peers")

    def __init__(
        self,
        membership: Membership,
        vault: Vault,
        members: Members,
        header: MaskedInputHeader,
        *,
        peers: Peers | None = None,
        leaves: bytes = b"",
    ) -> None:
        super().__init__(membership, vault)
        self._members = members
        self._header = header
        # In suite v2.
        self._peers = peers
        self._leaves = leaves

    @property
    def leaves(self) -> bytes:
        """The leaf list that the upload opens with; empty in suite v1."""
        return self._leaves

    def handle(self, message: object) -> tuple[Unmask, ConsistencySignature]:
        """Take the survivor set and sign it.

        Raises:
            UnexpectedMessageError: Not Survivors, or this state is over: it signs once.
            VerificationError: A check failed; the secrets are erased.
        """
        self._require_live(message)
        if not isinstance(message, Survivors):
            raise self._unexpected(message)
        with self._acting():
            survivors = self._check(message)
            digest = transcript.survivors_sha256(self._members.ctx, message.headers)
            agreed = agreement_bytes(self._members.ctx, self._members.sha256, digest)
            signature = ConsistencySignature(
                silo_id=self.silo_id, signature=self._membership.sign(agreed)
            )
            following = Unmask(
                self._membership,
                self._vault,
                members=self._members,
                survivors=survivors,
                survivors_sha256=digest,
                rejected=None if self._peers is None else self._peers.rejected,
            )
        return following, signature

    def _check(self, message: Survivors) -> tuple[str, ...]:
        survivors = check_ordered_subset(
            (header.silo_id for header in message.headers),
            self._members.silo_ids,
            Check.SURVIVORS_ORDER,
            Check.SURVIVORS_SUBSET,
        )
        if self.silo_id not in survivors:
            raise VerificationError(Check.SURVIVORS_SELF, "this silo is listed as dropped")
        if self._header not in message.headers:
            raise VerificationError(Check.OWN_UPLOAD, "this silo's upload header was altered")
        parameters = self._membership.parameters
        honest = len(survivors) - parameters.c
        if len(survivors) < parameters.least_survivors or honest < 2:
            raise VerificationError(Check.SURVIVORS_SIZE, f"only {len(survivors)} survivors")
        for header in message.headers:
            check_upload_header(
                self._membership.roster, self._membership.descriptor, self._members, header
            )
        if self._peers is not None:
            check_survivors(
                self._membership.descriptor, self._peers.bundles, message.headers, parameters
            )
        return survivors
