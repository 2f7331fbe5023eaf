"""Suite v2: masks and boxes that hold unless X25519 and ML-KEM-768 (FIPS 203) both fall.

* Two seeds of a silo make its four private keys of one aggregation: the mask seed both mask keys
  (it is what the others hold shares of), an independent box seed both box keys.
* A KEM is no Diffie–Hellman: after a drop-out the key of a pair must follow from one side's shares
  alone. So the silo with the lower id deals a secret s_ij, which follows from its own mask seed,
  and seals it to the other's mask KEM key. k_ij comes from X25519 and s_ij together.
* A box's key comes from X25519 and an encapsulation made for one direction of one pair.
* Derivation: HKDF-SHA256, no salt, ``info = "chorale/v2/<purpose>" ‖ bound ‖ names``: bound is the
  32 bytes of H(D) or ctx, each name carries its length, and no purpose is a prefix of another. Each
  sealing key seals exactly one message, which is why the nonce may be zero.

Signatures are those of suite v1: a forgery is of no use to whoever comes later.

Covered: keys, derivation, encapsulation, boxes. Not covered: constant-time guarantees beyond those
of OpenSSL; erasing copies that the interpreter or OpenSSL made; randomness inside `encapsulate`,
which is the library's.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import (
    MLKEM768PrivateKey,
    MLKEM768PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg import suite
from secagg.errors import ParameterError
from secagg.suite import Secret

SUITE: Final = 2
SECRET_BYTES: Final = 32
KEM_KEY_BYTES: Final = 1184
KEM_CIPHERTEXT_BYTES: Final = 1088
SEALED_BYTES: Final = SECRET_BYTES + suite.TAG_BYTES
PURPOSES: Final = (
    "dh-mask",
    "kem-mask",
    "dh-box",
    "kem-box",
    "pair",
    "seal",
    "mask",
    "box",
    "self",
)
_PREFIX: Final = b"chorale/v2/"
_KEM_SEED_BYTES: Final = 64
_BOUND_BYTES: Final = 32
_MODULUS: Final = 3329
# The encoded polynomials of an encapsulation key; its last 32 bytes are a seed.
_POLYNOMIAL_BYTES: Final = KEM_KEY_BYTES - 32

# Returns (shared secret, ciphertext) for an encapsulation key; `encapsulate` outside tests.
Encapsulate = Callable[[bytes], tuple[bytes, bytes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateKeys:
    """One use's two private keys: masks or boxes."""

    agreement: X25519PrivateKey = field(repr=False)
    kem: MLKEM768PrivateKey = field(repr=False)

    @property
    def agreement_public(self) -> bytes:
        """The X25519 key that peers see, 32 bytes."""
        return self.agreement.public_key().public_bytes_raw()

    @property
    def kem_public(self) -> bytes:
        """The ML-KEM-768 key that peers see, 1,184 bytes."""
        return self.kem.public_key().public_bytes_raw()


def is_available() -> bool:
    """Tell whether the machine's OpenSSL has ML-KEM-768."""
    try:
        MLKEM768PrivateKey.from_seed_bytes(bytes(_KEM_SEED_BYTES))
    except UnsupportedAlgorithm:
        return False
    return True


def derive(
    secret: Secret, purpose: str, bound: bytes, *names: str | bytes, length: int = SECRET_BYTES
) -> bytes:
    """Derive `length` bytes for one of PURPOSES; `bound` is H(D) or ctx.

    The names are silo ids, and a ciphertext's digest where the purpose binds one, in the order the
    purpose fixes.

    Raises:
        ParameterError: Unknown purpose, or `bound` is not 32 bytes.
    """
    if purpose not in PURPOSES or len(bound) != _BOUND_BYTES:
        raise ParameterError("a derivation needs a known purpose and 32 bytes to bind it to")
    info = _PREFIX + purpose.encode() + bound
    for name in names:
        encoded = name.encode() if isinstance(name, str) else name
        info += len(encoded).to_bytes(2, "big") + encoded
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(secret)


def mask_keys(seed: Secret, descriptor_sha256: bytes, silo_id: str) -> PrivateKeys:
    """Return both mask keys of a silo's mask seed."""
    return _private_keys(seed, "mask", descriptor_sha256, silo_id)


def box_keys(seed: Secret, descriptor_sha256: bytes, silo_id: str) -> PrivateKeys:
    """Return both box keys of a silo's box seed."""
    return _private_keys(seed, "box", descriptor_sha256, silo_id)


def is_kem_key(public_key: bytes) -> bool:
    """Tell whether an encapsulation key passes the checks of FIPS 203 §7.2: length and modulus."""
    if len(public_key) != KEM_KEY_BYTES:
        return False
    # Two coefficients of twelve bits in three bytes, little endian.
    polynomials = np.frombuffer(public_key, dtype=np.uint8, count=_POLYNOMIAL_BYTES)
    low, middle, high = polynomials.astype(np.uint16).reshape(-1, 3).T
    coefficients = (low | (middle & 15) << 8, middle >> 4 | high << 4)
    return all(bool((half < _MODULUS).all()) for half in coefficients)


def encapsulate(public_key: bytes) -> tuple[bytes, bytes]:
    """Return a fresh shared secret and the ciphertext that carries it, for a checked key."""
    return MLKEM768PublicKey.from_public_bytes(public_key).encapsulate()


def decapsulate(private_key: MLKEM768PrivateKey, ciphertext: bytes) -> bytes:
    """Return the shared secret; of a bad ciphertext another one (implicit rejection)."""
    return private_key.decapsulate(ciphertext)


def box_key(
    shared: Secret, kem_shared: Secret, ctx: bytes, direction: tuple[str, str], ciphertext: bytes
) -> bytes:
    """Return the key of one direction's box.

    `direction` is (sender, recipient) and `ciphertext` the encapsulation.
    """
    digest = hashlib.sha256(ciphertext).digest()
    return derive(bytes(shared) + bytes(kem_shared), "box", ctx, *direction, digest)


def pair_secret(mask_seed: Secret, ctx: bytes, low: str, high: str) -> bytes:
    """Return s_ij of the dealer's mask seed, i < j."""
    return derive(mask_seed, "pair", ctx, low, high)


def seal_key(kem_shared: Secret, ctx: bytes, low: str, high: str, ciphertext: bytes) -> bytes:
    """Return the key under which s_ij is sealed; `ciphertext` is the encapsulation."""
    return derive(kem_shared, "seal", ctx, low, high, hashlib.sha256(ciphertext).digest())


def pair_mask_key(shared: Secret, secret: Secret, ctx: bytes, low: str, high: str) -> bytes:
    """Return k_ij of the X25519 secret of the pair's mask keys and s_ij."""
    return derive(bytes(shared) + bytes(secret), "mask", ctx, low, high)


def self_mask_key(self_seed: Secret, ctx: bytes, silo_id: str) -> bytes:
    """Return the key of a silo's self mask."""
    return derive(self_seed, "self", ctx, silo_id)


def _private_keys(seed: Secret, use: str, descriptor_sha256: bytes, silo_id: str) -> PrivateKeys:
    scalar = derive(seed, f"dh-{use}", descriptor_sha256, silo_id)
    kem_seed = derive(seed, f"kem-{use}", descriptor_sha256, silo_id, length=_KEM_SEED_BYTES)
    return PrivateKeys(
        agreement=suite.agreement_key(scalar), kem=MLKEM768PrivateKey.from_seed_bytes(kem_seed)
    )
