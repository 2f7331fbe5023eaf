"""Attacks 9 and 11: what a silo's figures lose on the way into the sum, and what is seen of them.

A failure: a rounding error beyond half a grid unit for each silo, a clip that turns a vector, or a
number or a text about one silo's data outside its masked vector. Not a failure: sizes and calls
that are the same whatever the data. Timing is not covered: see SECURITY.md.
"""

from typing import Any

import numpy as np
import pytest

from chorale.v1 import round_pb2
from dp.config import Mode
from dp.noise.grid import Grid
from secagg import wire
from tests.kit.simulation.secagg_tampering import ME
from tests.kit.simulation.session_federation import (
    CLIP,
    DIMENSION,
    GRID,
    Federation,
    identity_of,
)

# Attack 9 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0.001, 0.5, 1.0, 40.0])
def test_a09h_rounding_is_bounded_and_a_clip_keeps_the_direction(tmp_path, size):
    """Attack 9: each coordinate of the sum is within n/2 grid units of the clipped vectors' sum."""
    federation = Federation(tmp_path)
    draws = np.random.default_rng(7)
    grid = Grid(clip_l2=CLIP, steps=GRID, dimension=DIMENSION)
    exact = np.zeros(DIMENSION)
    for member in federation.members.values():
        vector = draws.normal(size=DIMENSION)
        member.delta = (vector * size * CLIP / np.linalg.norm(vector)).astype(np.float32)
        wide = member.delta.astype(np.float64)
        clip = grid.clip_steps / grid.scale
        exact += wide * min(1.0, clip / float(np.linalg.norm(wide)))
    total = federation.attempt().sum()[:-1]
    assert np.max(np.abs(total - exact * grid.scale)) <= len(federation.names) / 2 + 1e-3
    federation.close()


# Attack 11 ---------------------------------------------------------------------------------------

_CALLS = (
    "ReportReadyRequest", "RefuseRequest", "AdvertiseKeysRequest", "ShareKeysRequest",
    "GetUploadOffsetRequest", "UploadMaskedInputRequest", "CheckConsistencyRequest",
    "UnmaskRequest", "PollRequest", "FetchBlobRequest", "ListRecordsRequest",
    "AnswerPreflightRequest",
)  # fmt: skip
# Numbers that a silo writes: names of an aggregation, positions in public things, sizes that are
# the same for all, and the heads of its ledger.
_NUMBERS = {
    "round", "step", "part", "attempt", "ledger_seq", "seq", "leaf_count", "length_bytes",
    "offset_bytes", "wait_s", "from_position",
}  # fmt: skip
# Terms that a site would take part under: its policy, schedule and ledger say them, if it opted in.
_TERMS = {"local_epochs", "start_after_unix_s", "epsilon_quarters"}
# Whom a silo rejects follows from what a peer sent it, not from data.
_TEXTS = {
    "run_id", "silo_id", "sender", "recipient", "owner", "reason", "rule", "verdict",
    "families", "last_instruction_id", "rejected",
}  # fmt: skip
# What its policy or a person at the site said.
_WORDS = {"cohort_may_vary"}


def leaves_of(descriptor: Any) -> list[Any]:
    found = []
    for field in descriptor.fields:
        if field.message_type is not None:
            found += leaves_of(field.message_type)
        else:
            found.append(field)
    return found


def test_a11b_no_field_can_hold_a_count_a_loss_or_a_text_about_data():
    """Attack 11: every number and text a silo can say outside its masked vector is listed here."""
    unlisted, seen = set(), set()
    for call in _CALLS:
        for field in leaves_of(getattr(round_pb2, call).DESCRIPTOR):
            kind = field.type
            if kind == field.TYPE_BYTES:
                continue
            allowed = {field.TYPE_STRING: _TEXTS, field.TYPE_BOOL: _WORDS}.get(
                kind, _NUMBERS | _TERMS
            )
            assert kind not in (field.TYPE_DOUBLE, field.TYPE_FLOAT), field.name
            seen.add(field.name)
            if field.name not in allowed:
                unlisted.add(f"{call}: {field.name}")
    assert not unlisted
    assert {"ledger_seq", "families", "reason"} <= seen
    service = round_pb2.DESCRIPTOR.services_by_name["RoundService"]
    said = {method.input_type.name for method in service.methods}
    assert said - set(_CALLS) <= {"GetRosterRequest", "GetPlanRequest"}


def test_a11c_what_leaves_a_silo_has_one_size_whatever_its_data(tmp_path):
    """Attack 11: zeros, a huge vector and one that is not finite make the same calls and sizes."""
    shapes = []
    for number, delta in enumerate(
        (
            np.zeros(DIMENSION, np.float32),
            np.full(DIMENSION, 1e30, np.float32),
            np.full(DIMENSION, np.nan, np.float32),
        )
    ):
        # A federation of its own, so that the ledgers have one length too.
        directory = tmp_path / str(number)
        directory.mkdir()
        federation = Federation(directory)
        federation[ME].delta = delta
        identity = identity_of()
        federation.attempt(identity, mode=Mode.SILO).sum()
        shapes.append(
            [(sent.call, size_of(sent.message)) for sent in federation[ME].sent]
            + [("bytes", federation[ME].uploads[identity].nbytes)]
        )
        federation.close()
    assert shapes[0] == shapes[1] == shapes[2]


def size_of(message: Any) -> int:
    name = {
        "KeyBundle": "key_bundle", "ShareBoxes": "share_boxes",
        "MaskedInputHeader": "masked_input_header",
        "ConsistencySignature": "consistency_signature", "UnmaskingShares": "unmasking_shares",
    }[type(message).__name__]  # fmt: skip
    return int(getattr(wire, f"{name}_to_proto")(message).ByteSize())
