"""The wire: what goes in comes out, and nothing out of bounds gets in."""

import math
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from chorale.v1 import secagg_pb2 as pb
from secagg import messages, wire
from secagg.errors import MalformedMessageError
from tests.kit.secagg.secagg_samples import (
    HYBRID_FIELDS,
    make_descriptor,
    make_roster,
    signed_descriptor,
    signed_roster,
)

_SIGNATURE = bytes(range(64))
_DIGEST = bytes(range(32))
_BUNDLE = messages.KeyBundle(
    silo_id="silo-000",
    cipher_key=bytes([1]) * 32,
    mask_key=bytes([2]) * 32,
    ledger_seq=2**63,
    ledger_sha256=_DIGEST,
    families=("craft", "maze"),
    signature=_SIGNATURE,
)
_BOXES = messages.ShareBoxes(
    sender="silo-000",
    boxes=tuple(
        messages.ShareBox(
            recipient=f"silo-00{k}",
            ciphertext=bytes([k]) * messages.BOX_BYTES,
            self_seed_share_sha256=_DIGEST,
            mask_key_share_sha256=_DIGEST[::-1],
        )
        for k in (1, 2)
    ),
    self_seed_commitment=_DIGEST,
    own_self_seed_share_sha256=_DIGEST,
    signature=_SIGNATURE,
)
_UPLOAD = messages.MaskedInputHeader(
    silo_id="silo-000", length_bytes=4008, masked_sha256=_DIGEST, signature=_SIGNATURE
)
# The forms of version 2.
_HYBRID_BUNDLE = replace(
    _BUNDLE,
    kem_keys=messages.KemKeys(cipher_key=bytes([3]) * 1184, mask_key=bytes([4]) * 1184),
    debit=messages.DebitHead(seq=2**62, sha256=_DIGEST),
    cohort_may_vary=True,
)
_DEALT = messages.ShareLeaf(
    recipient="silo-001",
    box_kem=bytes([5]) * 1088,
    ciphertext=bytes(messages.BOX_BYTES),
    self_seed_share_sha256=_DIGEST,
    mask_key_share_sha256=_DIGEST[::-1],
    mask_kem=bytes([6]) * 1088,
    sealed=bytes(48),
    pair_secret_sha256=_DIGEST,
)
_NOT_DEALT = replace(_DEALT, recipient="silo-000", mask_kem=b"", sealed=b"", pair_secret_sha256=b"")
_ROOT = messages.ShareRoot(
    sender="silo-000",
    leaf_count=2,
    root=_DIGEST,
    self_seed_commitment=_DIGEST,
    own_self_seed_share_sha256=_DIGEST,
    signature=_SIGNATURE,
)
_HYBRID_UPLOAD = replace(
    _UPLOAD,
    silo_id="silo-004",
    debit=messages.DebitHead(seq=9, sha256=_DIGEST),
    rejected=("silo-001", "silo-003"),
)
_AGREEMENT = messages.ConsistencySignature(silo_id="silo-000", signature=_SIGNATURE)
_SHARE = messages.UnmaskingShare(owner="silo-001", share=bytes(33))
_ROSTER = signed_roster(make_roster())
_DESCRIPTOR = signed_descriptor(make_descriptor(_ROSTER.roster))
_SHARES = messages.UnmaskingShares(
    silo_id="silo-000",
    self_seed_shares=(_SHARE, replace(_SHARE, owner="silo-002")),
    mask_key_shares=(_SHARE,),
    signature=_SIGNATURE,
)
# By converter; behind a space, which version's form.
_CASES = {
    "identity": (_DESCRIPTOR.descriptor.identity, pb.AggregationId),
    "roster": (_ROSTER, pb.Roster),
    "descriptor": (_DESCRIPTOR, pb.Descriptor),
    "key_bundle": (_BUNDLE, pb.KeyBundle),
    "key_bundles": (messages.KeyBundles(bundles=(_BUNDLE, _BUNDLE)), pb.KeyBundles),
    "share_boxes": (_BOXES, pb.ShareBoxes),
    "box_delivery": (
        messages.BoxDelivery(
            headers=(_BOXES.header(),), ciphertexts={"silo-001": bytes(messages.BOX_BYTES)}
        ),
        pb.BoxDelivery,
    ),
    "masked_input_header": (_UPLOAD, pb.MaskedInputHeader),
    "survivors": (messages.Survivors(headers=(_UPLOAD,)), pb.Survivors),
    "consistency_signature": (_AGREEMENT, pb.ConsistencySignature),
    "consistency_signatures": (
        messages.ConsistencySignatures(signatures=(_AGREEMENT,)),
        pb.ConsistencySignatures,
    ),
    "unmasking_shares": (_SHARES, pb.UnmaskingShares),
    "descriptor v2": (
        signed_descriptor(make_descriptor(_ROSTER.roster, **HYBRID_FIELDS)),
        pb.Descriptor,
    ),
    "key_bundle v2": (_HYBRID_BUNDLE, pb.KeyBundle),
    "share_root": (_ROOT, pb.ShareRoot),
    "share_leaves": (messages.ShareLeaves(root=_ROOT, leaves=(_DEALT, _NOT_DEALT)), pb.ShareLeaves),
    "leaf_delivery": (
        messages.LeafDelivery(
            roots=(_ROOT,),
            leaves={
                "silo-002": messages.DeliveredLeaf(leaf=_DEALT, path=(_DIGEST, _DIGEST[::-1])),
                "silo-003": messages.DeliveredLeaf(leaf=_NOT_DEALT, path=()),
            },
        ),
        pb.LeafDelivery,
    ),
    "masked_input_header v2": (_HYBRID_UPLOAD, pb.MaskedInputHeader),
    "unmasking_shares v2": (
        replace(_SHARES, pair_secrets=(messages.PairSecret(silo_id="silo-001", secret=bytes(32)),)),
        pb.UnmaskingShares,
    ),
    "unmasking_shares v2 nobody lost": (
        replace(_SHARES, mask_key_shares=(), pair_secrets=()),
        pb.UnmaskingShares,
    ),
}


def _to(name, message):
    return getattr(wire, f"{name.split()[0]}_to_proto")(message)


def _from(name, proto):
    return getattr(wire, f"{name.split()[0]}_from_proto")(proto)


def test_every_conversion_is_tested():
    converters = {name[: -len("_to_proto")] for name in vars(wire) if name.endswith("_to_proto")}
    assert {name for name in converters if not name.startswith("_")} == {
        name.split()[0] for name in _CASES
    }


@pytest.mark.parametrize("name", sorted(_CASES))
def test_round_trip(name):
    message, proto = _CASES[name]
    assert _from(name, proto.FromString(_to(name, message).SerializeToString())) == message


def test_signed_bytes_survive_the_wire():
    sent = wire.descriptor_from_proto(wire.descriptor_to_proto(_DESCRIPTOR))
    assert sent.descriptor.signed_bytes() == _DESCRIPTOR.descriptor.signed_bytes()
    boxes = wire.share_boxes_from_proto(wire.share_boxes_to_proto(_BOXES))
    assert boxes.header().signed_bytes(_DIGEST) == _BOXES.header().signed_bytes(_DIGEST)


_ROUND_TRIP_FLOATS = st.floats(
    min_value=5e-324, allow_infinity=False, allow_nan=False, allow_subnormal=True
)


@given(_ROUND_TRIP_FLOATS, st.integers(0, 2**32 - 1), st.integers(1, 2**64 - 1))
def test_numbers_are_not_rounded(real, small, large):
    descriptor = replace(
        _DESCRIPTOR.descriptor,
        scale=real,
        noise_sigma=real,
        n_min=small,
        max_units=large,
        roster_epoch=large,
    )
    signed = replace(_DESCRIPTOR, descriptor=descriptor)
    assert wire.descriptor_from_proto(wire.descriptor_to_proto(signed)) == signed


@pytest.mark.parametrize("name", sorted(_CASES))
def test_an_empty_message_is_malformed(name):
    with pytest.raises(MalformedMessageError):
        _from(name, _CASES[name][1]())


@pytest.mark.parametrize("name", sorted(_CASES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mangled_bytes_are_accepted_within_bounds_or_refused(name, data):
    message, proto = _CASES[name]
    sent = bytearray(_to(name, message).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(sent) - 1))
        action = data.draw(st.sampled_from(["flip", "delete", "insert", "cut"]))
        if action == "flip":
            sent[position] ^= data.draw(st.integers(1, 255))
        elif action == "delete" and len(sent) > 1:
            del sent[position]
        elif action == "insert":
            sent[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        elif len(sent) > 1:
            del sent[max(position, 1) :]
    _parse(name, proto, bytes(sent))


@pytest.mark.parametrize("name", sorted(_CASES))
@settings(max_examples=40, deadline=None)
@given(content=st.binary(max_size=300))
def test_random_bytes_are_accepted_within_bounds_or_refused(name, content):
    _parse(name, _CASES[name][1], content)


def _parse(name, proto, content):
    """Nothing but the two typed errors may come out, and what is accepted converts back."""
    try:
        message = _from(name, proto.FromString(content))
    except (DecodeError, MalformedMessageError):
        return
    assert _from(name, _to(name, message)) == message


@pytest.mark.parametrize(
    ("name", "alter"),
    [
        ("key_bundle", lambda p: setattr(p, "silo_id", "Silo")),
        ("key_bundle", lambda p: setattr(p, "cipher_key", bytes(33))),
        ("key_bundle", lambda p: setattr(p, "signature", bytes(63))),
        ("key_bundle", lambda p: p.families.append("craft")),
        ("key_bundle", lambda p: p.families.append("other family")),
        ("key_bundle", lambda p: p.families.append("z" * 65)),
        ("key_bundle", lambda p: p.families.extend(f"n{k:02}" for k in range(63))),
        ("key_bundles", lambda p: p.bundles.extend([p.bundles[0]] * 199)),
        ("share_boxes", lambda p: p.boxes.extend([p.boxes[0]] * 199)),
        ("share_boxes", lambda p: setattr(p.boxes[0], "ciphertext", bytes(83))),
        ("share_boxes", lambda p: p.ClearField("boxes")),
        ("box_delivery", lambda p: p.headers.extend([p.headers[0]] * 200)),
        ("box_delivery", lambda p: p.ciphertexts.update({"silo-009": bytes(81)})),
        ("box_delivery", lambda p: p.ciphertexts.update({"Bad": bytes(82)})),
        (
            "box_delivery",
            lambda p: p.ciphertexts.update({f"silo-{k}": bytes(82) for k in range(201)}),
        ),
        ("masked_input_header", lambda p: setattr(p, "length_bytes", 0)),
        ("survivors", lambda p: p.headers.extend([p.headers[0]] * 200)),
        ("consistency_signatures", lambda p: p.signatures.extend([p.signatures[0]] * 200)),
        ("unmasking_shares", lambda p: setattr(p.self_seed_shares[0], "share", bytes(32))),
        ("unmasking_shares", lambda p: setattr(p.mask_key_shares[0], "owner", "")),
        ("unmasking_shares", lambda p: p.mask_key_shares.extend([p.mask_key_shares[0]] * 200)),
        ("key_bundle v2", lambda p: p.ClearField("debit")),
        ("key_bundle v2", lambda p: p.ClearField("kem_keys")),
        ("key_bundle v2", lambda p: setattr(p.kem_keys, "mask_key", bytes(1183))),
        ("key_bundle v2", lambda p: setattr(p.kem_keys, "cipher_key", bytes(1185))),
        ("key_bundle v2", lambda p: setattr(p.debit, "sha256", bytes(31))),
        ("key_bundle", lambda p: setattr(p, "cohort_may_vary", True)),
        ("share_root", lambda p: setattr(p, "leaf_count", 0)),
        ("share_root", lambda p: setattr(p, "leaf_count", 200)),
        ("share_root", lambda p: setattr(p, "root", bytes(31))),
        ("share_leaves", lambda p: p.ClearField("root")),
        ("share_leaves", lambda p: p.ClearField("leaves")),
        ("share_leaves", lambda p: p.leaves.extend([p.leaves[0]] * 198)),
        ("share_leaves", lambda p: setattr(p.leaves[0], "box_kem", bytes(1087))),
        ("share_leaves", lambda p: setattr(p.leaves[0], "ciphertext", bytes(83))),
        ("share_leaves", lambda p: setattr(p.leaves[0], "mask_kem", b"")),
        ("share_leaves", lambda p: setattr(p.leaves[0], "sealed", b"")),
        ("share_leaves", lambda p: setattr(p.leaves[1], "sealed", bytes(48))),
        ("share_leaves", lambda p: setattr(p.leaves[0], "pair_secret_sha256", b"")),
        ("share_leaves", lambda p: setattr(p.leaves[1], "pair_secret_sha256", bytes(32))),
        ("leaf_delivery", lambda p: p.roots.extend([p.roots[0]] * 200)),
        ("leaf_delivery", lambda p: p.leaves["silo-002"].path.extend([bytes(32)] * 7)),
        ("leaf_delivery", lambda p: p.leaves["silo-002"].path.append(bytes(31))),
        ("leaf_delivery", lambda p: p.leaves["silo-002"].ClearField("leaf")),
        ("leaf_delivery", lambda p: p.leaves["Bad"].CopyFrom(p.leaves["silo-002"])),
        ("masked_input_header v2", lambda p: p.ClearField("debit")),
        ("masked_input_header v2", lambda p: p.rejected.append("silo-001")),
        ("masked_input_header v2", lambda p: p.rejected.append("silo-004")),
        ("masked_input_header v2", lambda p: p.rejected.append("Bad")),
        ("unmasking_shares v2", lambda p: setattr(p.pair_secrets.secrets[0], "secret", bytes(33))),
        ("unmasking_shares v2", lambda p: setattr(p.pair_secrets.secrets[0], "silo_id", "")),
        (
            "unmasking_shares v2",
            lambda p: p.pair_secrets.secrets.extend([p.pair_secrets.secrets[0]] * 200),
        ),
        ("descriptor v2", lambda p: p.ClearField("families")),
        ("descriptor v2", lambda p: setattr(p, "task_sha256", b"")),
        ("descriptor v2", lambda p: setattr(p, "digest_id", 0)),
        ("descriptor", lambda p: setattr(p, "digest_id", 1)),
        ("descriptor", lambda p: setattr(p, "task_sha256", bytes(32))),
        ("roster", lambda p: setattr(p, "epoch", 0)),
        ("roster", lambda p: setattr(p.entries[0], "spiffe_uri", "http://x")),
        ("roster", lambda p: p.entries.extend([p.entries[0]])),
        ("descriptor", lambda p: p.ClearField("identity")),
        ("descriptor", lambda p: p.ClearField("metrics") or setattr(p.metrics, "sigma", -0.0)),
        ("descriptor", lambda p: setattr(p, "scale", math.nan)),
        ("descriptor", lambda p: setattr(p, "noise_sigma", math.inf)),
        ("descriptor", lambda p: setattr(p, "noise_sigma", -0.0)),
        ("descriptor", lambda p: p.metrics.bounds.append(1.0)),
        ("descriptor", lambda p: p.metrics.names.extend(["m"] * 1024)),
        ("descriptor", lambda p: p.cohort.extend(["silo-009"] * 196)),
        ("descriptor", lambda p: p.deadlines_unix_s.append(1500)),
        ("descriptor", lambda p: setattr(p, "dimension", 2**40)),
        ("descriptor", lambda p: setattr(p, "plan_sha256", b"")),
    ],
)
def test_fields_out_of_bounds_are_malformed(name, alter):
    proto = _to(name, _CASES[name][0])
    alter(proto)
    with pytest.raises(MalformedMessageError):
        _from(name, proto)
