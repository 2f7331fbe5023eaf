"""R2 at the coordinator: who has uploaded what it signed.

The bytes themselves go to the accumulator; this state sees their digest, in suite v2 the root of
their digest tree. Once it is closed an
upload is late: the survivors have been declared, and folding it in would break the sum.
"""

from secagg import transcript
from secagg.errors import Check, UnexpectedMessageError, VerificationError
from secagg.messages import MaskedInputHeader, Survivors
from secagg.server.collect_consistency import CollectConsistency
from secagg.server.dealt import Dealt
from secagg.server.pairs import left_out
from secagg.server.state import Aggregation, ServerState
from secagg.transcript import Members
from secagg.verification import (
    check_debit,
    check_survivors,
    check_upload_header,
    equal,
    rejected_pairs,
)


class CollectMaskedInputs(ServerState[MaskedInputHeader]):
    """Waits for the complete upload of each silo of U2."""

    __slots__ = ("_announced", "_dealt", "_members")

    def __init__(self, aggregation: Aggregation, members: Members, dealt: Dealt) -> None:
        super().__init__(aggregation, members.silo_ids)
        self._members = members
        self._dealt = dealt
        self._announced: dict[str, MaskedInputHeader] = {}

    @property
    def members(self) -> Members:
        """U2."""
        return self._members

    @property
    def announced(self) -> frozenset[str]:
        """The silos whose header is known, complete or not."""
        return frozenset(self._announced)

    def expect(self, header: MaskedInputHeader) -> bool:
        """Take the signed header that opens an upload, and say whether it is new.

        The same header again resumes the upload.

        Raises:
            UnexpectedMessageError: The survivors have been declared.
            VerificationError: sender, duplicate, suite, upload_signature or masked_length; in suite
                v2 rejected_pair or debit_head too.
        """
        self._is_repeat(header.silo_id, header)
        known = self._announced.get(header.silo_id)
        if known is not None:
            if known != header:
                raise VerificationError(
                    Check.DUPLICATE, "a second, different upload", silo=header.silo_id
                )
            return False
        check_upload_header(
            self._aggregation.roster, self._aggregation.descriptor, self._members, header
        )
        if self._aggregation.descriptor.is_hybrid:
            check_debit(self._dealt.bundles[header.silo_id], header)
        self._announced[header.silo_id] = header
        return True

    def completed(self, silo_id: str, masked_sha256: bytes) -> bool:
        """Record that a silo's bytes have arrived in full, and say whether they had not before.

        The digest is that of the bytes as received, whose chunks were checked against their leaves
        in suite v2.

        Raises:
            UnexpectedMessageError: The survivors have been declared, or no header came before.
            VerificationError: masked_digest; the bytes must not enter the sum.
        """
        self._require_open()
        header = self._announced.get(silo_id)
        if header is None:
            raise UnexpectedMessageError("bytes without a header", silo=silo_id)
        if not equal(header.masked_sha256, masked_sha256):
            raise VerificationError(
                Check.MASKED_DIGEST, "the bytes are not those that were signed", silo=silo_id
            )
        if silo_id in self._received:
            return False
        self._received[silo_id] = header
        return True

    @property
    def rejected_pairs(self) -> tuple[tuple[str, str], ...]:
        """Each (accused, accuser) of the silos that uploaded."""
        return rejected_pairs(self._received.values())

    @property
    def left_out(self) -> tuple[str, ...]:
        """The silos that uploaded and are left out of U3, because pairs of them were rejected.

        Raises:
            VerificationError: rejected_pair: to leave out c of them is not enough.
        """
        found = left_out(self.rejected_pairs, self._aggregation.parameters.c)
        if found is None:
            raise VerificationError(
                Check.REJECTED_PAIR, "more silos reject or are rejected than may collude"
            )
        return found

    def close(self) -> tuple[CollectConsistency, Survivors]:
        """Declare U3: who uploaded, less `left_out`, whose uploads must not be in the sum.

        Raises:
            VerificationError: survivors_size; in suite v2 rejected_pair, or contributors or
                metrics_families, at which every silo would abort.
        """
        for silo_id in self.left_out:
            del self._received[silo_id]
        headers = tuple(self._close(Check.SURVIVORS_SIZE).values())
        if self._aggregation.descriptor.is_hybrid:
            check_survivors(
                self._aggregation.descriptor,
                self._dealt.bundles,
                headers,
                self._aggregation.parameters,
            )
        following = CollectConsistency(
            self._aggregation,
            self._members,
            {header.silo_id: header.rejected for header in headers},
            transcript.survivors_sha256(self._members.ctx, headers),
            self._dealt,
        )
        return following, Survivors(headers=headers)
