"""Signed audit heads: whose they are, what may follow what, and the file that carries them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.audit.head import (
    COORDINATOR,
    MAX_FILE_BYTES,
    decode_heads,
    encode_heads,
    require_follows,
    sign_head,
    silo_writer,
)
from federation.audit.lines import EMPTY, ChainHead
from federation.errors import AuditHeadConflictError, AuditHeadError
from federation.wire import audit_head_from_proto, audit_head_to_proto
from secagg.suite import verification_key

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))


def head_at(index, sha256="ab" * 32, *, writer=COORDINATOR, key=KEY, federation="oncology"):
    return sign_head(
        ChainHead(index=index, sha256=sha256),
        federation=federation,
        writer=writer,
        at_unix_s=1_800_000_000,
        key=key,
    )


def test_a_head_is_its_writers_and_every_field_is_signed():
    head = head_at(3)
    head.verify(verification_key(KEY))
    with pytest.raises(AuditHeadError, match="not signed by coordinator"):
        head.verify(verification_key(OTHER))
    for changes in (
        {"index": 4},
        {"sha256": bytes(32)},
        {"at_unix_s": 1},
        {"federation": "cardiology"},
        {"writer": silo_writer("coordinator")},
    ):
        assert not replace(head, **changes).is_signed_by(verification_key(KEY))


def test_an_empty_log_has_no_head():
    with pytest.raises(AuditHeadError):
        head_at(EMPTY.index, EMPTY.sha256)


@pytest.mark.parametrize(
    "changes",
    [
        {"index": -1},
        {"index": 2**63},
        {"index": True},
        {"sha256": b"short"},
        {"at_unix_s": -1},
        {"signature": bytes(63)},
        {"federation": ""},
        {"federation": "a b"},
        {"writer": "silo/"},
        {"writer": "hospital-a"},
        {"writer": "xsilo/a"},
        {"writer": "silo/A"},
        {"writer": "silo/a/b"},
    ],
)
def test_heads_are_bounded(changes):
    with pytest.raises(AuditHeadError):
        replace(head_at(3), **changes)


def test_what_may_follow_what():
    newest = head_at(3)
    require_follows(None, newest)
    require_follows(newest, newest)
    # Said again later, and grown.
    require_follows(newest, replace(newest, at_unix_s=newest.at_unix_s + 60))
    require_follows(newest, head_at(4, "cd" * 32))
    with pytest.raises(AuditHeadConflictError, match="went back: it stands at record 2"):
        require_follows(newest, head_at(2, "cd" * 32))
    with pytest.raises(AuditHeadConflictError, match="forks: record 3"):
        require_follows(newest, head_at(3, "cd" * 32))


def test_files_and_messages_carry_heads_unchanged():
    heads = (head_at(3), head_at(0, writer=silo_writer("hospital-a")))
    assert decode_heads(encode_heads(heads)) == heads
    for head in heads:
        message = audit_head_to_proto(head)
        assert audit_head_from_proto(message, federation="oncology", writer=head.writer) == head


def altered(**changes):
    document = json.loads(encode_heads((head_at(3),)))
    document["heads"][0].update(changes)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        b'{"format": "chorale-audit-heads/2", "heads": []}',
        b'{"format": "chorale-audit-heads/1", "heads": [1]}',
        b'{"format": "chorale-audit-heads/1", "heads": 1}',
        b'{"format": "chorale-audit-heads/1", "heads": [], "more": 1}',
        b" " * (MAX_FILE_BYTES + 1),
        altered(index="3"),
        altered(index=3.0),
        altered(sha256="AB" * 32),
        altered(sha256="ab" * 31),
        altered(signature=7),
        altered(more=1),
    ],
)
def test_other_files_are_refused(content):
    with pytest.raises(AuditHeadError):
        decode_heads(content)
