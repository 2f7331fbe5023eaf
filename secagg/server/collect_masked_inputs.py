"""R2 at the coordinator: who has uploaded what it signed.

The bytes themselves go to the accumulator; this state sees their digest. Once it is closed an
upload is late: the survivors have been declared, and folding it in would break the sum.
"""

from collections.abc import Mapping

from secagg import transcript
from secagg.errors import Check, UnexpectedMessageError, VerificationError
from secagg.messages import MaskedInputHeader, ShareBoxHeader, Survivors
from secagg.server.collect_consistency import CollectConsistency
from secagg.server.state import Aggregation, ServerState
from secagg.transcript import Members
from secagg.verification import check_upload_header, equal


class CollectMaskedInputs(ServerState[MaskedInputHeader]):
    """Waits for the complete upload of each silo of U2."""

    __slots__ = ("_announced", "_mask_keys", "_members", "_share_headers")

    def __init__(
        self,
        aggregation: Aggregation,
        members: Members,
        mask_keys: Mapping[str, bytes],
        share_headers: Mapping[str, ShareBoxHeader],
    ) -> None:
        super().__init__(aggregation, members.silo_ids)
        self._members = members
        self._mask_keys = mask_keys
        self._share_headers = share_headers
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
            VerificationError: sender, duplicate, upload_signature or masked_length.
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
        self._announced[header.silo_id] = header
        return True

    def completed(self, silo_id: str, masked_sha256: bytes) -> bool:
        """Record that a silo's bytes have arrived in full, and say whether they had not before.

        The digest is that of the bytes as received.

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

    def close(self) -> tuple[CollectConsistency, Survivors]:
        """Declare U3.

        Raises:
            VerificationError: survivors_size.
        """
        headers = tuple(self._close(Check.SURVIVORS_SIZE).values())
        following = CollectConsistency(
            self._aggregation,
            self._members,
            tuple(header.silo_id for header in headers),
            transcript.survivors_sha256(self._members.ctx, headers),
            mask_keys=self._mask_keys,
            share_headers=self._share_headers,
        )
        return following, Survivors(headers=headers)
