"""The roster as a file that people read, carry to the root, and bring back signed.

Covered: JSON under the wire's own field names, proposals without a signature. Not covered:
verification, which belongs to whoever acts on the roster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from google.protobuf import json_format

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2
from federation.membership.roster_change import fingerprint
from ops.files import replace_file
from secagg.errors import SecAggError
from secagg.roster import Roster, SignedRoster
from server.errors import RosterError

__all__ = ["describe_roster", "propose", "read_roster", "roster_message", "write_roster"]

MAX_ROSTER_BYTES: Final = 4 << 20
_UNSIGNED: Final = bytes(64)
"""Stands where the root's signature will be."""


def propose(roster: Roster) -> SignedRoster:
    """Give a roster the form of a signed one, with an empty signature that nothing accepts."""
    return SignedRoster(roster=roster, signature=_UNSIGNED)


def roster_message(signed: SignedRoster) -> secagg_pb2.Roster:
    """Return the message of a roster; a proposal's signature stays empty."""
    message = secagg_wire.roster_to_proto(signed)
    if message.signature == _UNSIGNED:
        message.signature = b""
    return message


def write_roster(path: Path, message: secagg_pb2.Roster) -> None:
    """Write a roster as JSON."""
    text = json_format.MessageToJson(message, preserving_proto_field_name=True)
    replace_file(path, ((text + "\n").encode(),), mode=0o644)


def read_roster(path: Path) -> SignedRoster:
    """Read a roster file, signed or proposed, without verifying it.

    Raises:
        RosterError: It is absent or not a well-formed roster.
    """
    try:
        if path.stat().st_size > MAX_ROSTER_BYTES:
            raise RosterError(f"{path} is too big for a roster")
        message = json_format.Parse(path.read_text(), secagg_pb2.Roster())
        if not message.signature and not message.approvals:
            message.signature = _UNSIGNED
        return secagg_wire.roster_from_proto(message)
    except (OSError, UnicodeDecodeError, json_format.ParseError, SecAggError) as error:
        raise RosterError(f"{path} is not a roster: {error}") from error


def describe_roster(roster: Roster) -> str:
    """Say what a signature would mean, in several lines, with a digest of every key."""
    lines = [
        f"federation {roster.federation}, epoch {roster.epoch}",
        f"coordinator key {fingerprint(roster.coordinator_key)}",
        f"up to {roster.colluding} of {len(roster.entries)} silos may collude with it",
    ]
    lines += [
        f"  {entry.silo_id}: key {fingerprint(entry.verification_key)}, {entry.spiffe_uri}"
        for entry in roster.entries
    ]
    lines.append(f"roster SHA-256 {roster.sha256.hex()}")
    return "\n".join(lines)
