"""R0 bundles with a chosen ledger head, signed as their silo signs them."""

from __future__ import annotations

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import suite
from secagg.messages import KeyBundle
from tests.kit.secagg.secagg_samples import signing_key


def make_bundle(
    silo_id: str,
    *,
    ledger_seq: int,
    ledger_sha256: bytes = b"\x09" * 32,
    descriptor_sha256: bytes = b"\x05" * 32,
    key: Ed25519PrivateKey | None = None,
) -> KeyBundle:
    bundle = KeyBundle(
        silo_id=silo_id,
        cipher_key=b"\x01" * 32,
        mask_key=b"\x02" * 32,
        ledger_seq=ledger_seq,
        ledger_sha256=ledger_sha256,
        families=(),
        signature=bytes(64),
    )
    return sign_again(bundle, descriptor_sha256, key or signing_key(silo_id))


def sign_again(bundle: KeyBundle, descriptor_sha256: bytes, key: Ed25519PrivateKey) -> KeyBundle:
    """The same bundle under a signature that covers what it says now."""
    signature = suite.sign(key, bundle.signed_bytes(descriptor_sha256))
    return replace(bundle, signature=signature)
