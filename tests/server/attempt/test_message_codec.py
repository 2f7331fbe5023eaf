"""Rows of messages: complete while an attempt is open, public afterwards."""

from dataclasses import replace

import pytest

from secagg.errors import MalformedMessageError
from secagg.messages import ShareBoxes, UnmaskingShares
from server.attempt.journal import decode, decode_public, encode
from server.figures import STEPS
from tests.kit.server.played import NAMES, Played


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    """Every message of an attempt."""
    played = Played(tmp_path_factory.mktemp("attempt"))
    sent = []
    real = played.journal.accepted
    played.journal.accepted = lambda message: (sent.append(message), real(message))
    for step in STEPS:
        played.step()
        if step is not STEPS[-1]:
            played.attempt.close_phase()
    played.attempt.close()
    return sent


def test_what_is_read_back_is_what_was_accepted(accepted):
    assert len(accepted) == 5 * len(NAMES)
    for message in accepted:
        row = encode(message)
        assert row.silo_id in NAMES
        assert decode(row, hybrid=False) == message


def test_the_public_part_of_r1_is_the_signed_header_and_no_box(accepted):
    for message in accepted:
        row = replace(encode(message), sealed=None)
        if isinstance(message, ShareBoxes):
            assert decode_public(row, hybrid=False) == message.header()
            assert all(box.ciphertext not in row.body for box in message.boxes)
            with pytest.raises(MalformedMessageError, match="boxes"):
                decode(row, hybrid=False)
        elif isinstance(message, UnmaskingShares):
            assert row.body == b""
            with pytest.raises(MalformedMessageError, match="no public part"):
                decode_public(row, hybrid=False)
            with pytest.raises(MalformedMessageError, match="no public part"):
                decode(row, hybrid=False)
        else:
            assert decode_public(row, hybrid=False) == message


def test_secrets_are_not_printed(accepted):
    for message in accepted:
        row = encode(message)
        if row.sealed is not None:
            assert repr(row.sealed) not in repr(row)
