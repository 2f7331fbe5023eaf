"""A transcript as a file: the message ``Transcript`` in the JSON mapping of proto3.

Bytes are base64, 64-bit integers are decimal strings, numbers have as many digits as identify them,
field names are those of ``proto/chorale/v1/transcript.proto``. Signatures are over the canonical
encoding (``secagg/canonical.py``), so neither the order of the fields nor white space matters.

The version of the file is that of its descriptor: 1 in suite v1, 2 in suite v2.

Covered: bounds of everything read, unknown fields, files that are too large. Not covered: whether
the content verifies (``federation.transcript.transcript``).
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from chorale.v1 import secagg_pb2, transcript_pb2
from federation.errors import ChainError, TranscriptCheck, TranscriptError
from federation.transcript.transcript import Outcome, Transcript
from federation.wire import earlier_rosters_from_proto, record_from_proto, record_to_proto
from secagg import wire
from secagg.descriptor import BASE_VERSION, HYBRID_VERSION
from secagg.errors import SecAggError
from secagg.messages import (
    BoxDelivery,
    ConsistencySignature,
    KeyBundle,
    MaskedInputHeader,
    ShareBoxHeader,
    ShareRoot,
)

VERSIONS: Final = (BASE_VERSION, HYBRID_VERSION)
MAX_FILE_BYTES: Final = 64 << 20
"""Of suite v1, 200 silos make 12 MB: their R1 headers have 200 × 199 × 3 digests; all else is
small."""


def encode_transcript(transcript: Transcript) -> bytes:
    """The file form."""
    message = transcript_to_proto(transcript)
    text = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=1)
    return text.encode() + b"\n"


def decode_transcript(content: bytes) -> Transcript:
    """Read a file that may be hostile.

    Raises:
        TranscriptError: format.
    """
    if len(content) > MAX_FILE_BYTES:
        raise TranscriptError(
            TranscriptCheck.FORMAT, f"a transcript has at most {MAX_FILE_BYTES} bytes"
        )
    try:
        message = json_format.Parse(content, transcript_pb2.Transcript(), max_recursion_depth=16)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise TranscriptError(
            TranscriptCheck.FORMAT, "the file is not the JSON form of a transcript"
        ) from error
    return transcript_from_proto(message)


def mapped(path: Path) -> memoryview:
    """A published sum as a read-only memory map; it may be larger than memory."""
    if not path.stat().st_size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def parse_transcript(content: bytes) -> Transcript:
    """Read the serialised message.

    Raises:
        TranscriptError: format.
    """
    try:
        message = transcript_pb2.Transcript.FromString(content)
    except DecodeError as error:
        raise TranscriptError(TranscriptCheck.FORMAT, "not a serialised transcript") from error
    return transcript_from_proto(message)


def transcript_to_proto(transcript: Transcript) -> transcript_pb2.Transcript:
    """Convert."""
    message = transcript_pb2.Transcript(
        version=transcript.descriptor.descriptor.version,
        outcome=transcript.outcome.value,
        phases=transcript.phases,
        roster=wire.roster_to_proto(transcript.roster),
        earlier_rosters=[wire.roster_to_proto(roster) for roster in transcript.earlier_rosters],
        descriptor=wire.descriptor_to_proto(transcript.descriptor),
        bundles=[wire.key_bundle_to_proto(bundle) for bundle in transcript.bundles],
        upload_headers=[
            wire.masked_input_header_to_proto(header) for header in transcript.upload_headers
        ],
        agreements=[wire.consistency_signature_to_proto(item) for item in transcript.agreements],
    )
    if transcript.share_headers:
        delivery = BoxDelivery(headers=transcript.share_headers, ciphertexts={})
        message.share_headers.extend(wire.box_delivery_to_proto(delivery).headers)
    message.share_roots.extend(wire.share_root_to_proto(root) for root in transcript.share_roots)
    if transcript.record is not None:
        message.record.CopyFrom(record_to_proto(transcript.record))
    if transcript.parent is not None:
        message.parent.CopyFrom(record_to_proto(transcript.parent))
    return message


def transcript_from_proto(message: transcript_pb2.Transcript) -> Transcript:
    """Convert, every field within bounds.

    Raises:
        TranscriptError: format.
    """
    if message.version not in VERSIONS or message.version != message.descriptor.version:
        raise TranscriptError(TranscriptCheck.FORMAT, f"unknown version {message.version}")
    outcomes = {outcome.value: outcome for outcome in Outcome}
    if message.outcome not in outcomes:
        raise TranscriptError(TranscriptCheck.FORMAT, "unknown outcome")
    try:
        return Transcript(
            outcome=outcomes[message.outcome],
            phases=message.phases,
            roster=wire.roster_from_proto(message.roster),
            earlier_rosters=earlier_rosters_from_proto(message.earlier_rosters),
            descriptor=wire.descriptor_from_proto(message.descriptor),
            bundles=_bundles(message),
            share_headers=_share_headers(message),
            share_roots=_share_roots(message),
            upload_headers=_upload_headers(message),
            agreements=_agreements(message),
            record=record_from_proto(message.record) if message.HasField("record") else None,
            parent=record_from_proto(message.parent) if message.HasField("parent") else None,
        )
    except (SecAggError, ChainError) as error:
        raise TranscriptError(TranscriptCheck.FORMAT, str(error)) from error


# A list of the wire has at least one item; here it may be empty, where its phase did not close.


def _bundles(message: transcript_pb2.Transcript) -> tuple[KeyBundle, ...]:
    if not message.bundles:
        return ()
    return wire.key_bundles_from_proto(secagg_pb2.KeyBundles(bundles=message.bundles)).bundles


def _share_headers(message: transcript_pb2.Transcript) -> tuple[ShareBoxHeader, ...]:
    if not message.share_headers:
        return ()
    return wire.box_delivery_from_proto(
        secagg_pb2.BoxDelivery(headers=message.share_headers)
    ).headers


def _share_roots(message: transcript_pb2.Transcript) -> tuple[ShareRoot, ...]:
    if not message.share_roots:
        return ()
    return wire.leaf_delivery_from_proto(secagg_pb2.LeafDelivery(roots=message.share_roots)).roots


def _upload_headers(message: transcript_pb2.Transcript) -> tuple[MaskedInputHeader, ...]:
    if not message.upload_headers:
        return ()
    return wire.survivors_from_proto(secagg_pb2.Survivors(headers=message.upload_headers)).headers


def _agreements(message: transcript_pb2.Transcript) -> tuple[ConsistencySignature, ...]:
    if not message.agreements:
        return ()
    return wire.consistency_signatures_from_proto(
        secagg_pb2.ConsistencySignatures(signatures=message.agreements)
    ).signatures
