"""Suite v1: the primitives and how each is keyed.

* Signatures: Ed25519 over canonical encodings. A key of small order, for which anybody can sign,
  or not in its one encoding verifies nothing: OpenSSL takes both.
* Agreement: X25519; a key whose shared secret would be zero is refused (RFC 7748 §6.1).
* Derivation: HKDF-SHA256, no salt, ``info = "chorale/v1/<purpose>" ‖ ctx ‖ names``. ctx is always
  32 bytes and each name carries its length, and no purpose is a prefix of another, so that no two
  derivations share an info.
* Boxes: ChaCha20-Poly1305 under a key made for one direction of one pair in one aggregation. Each
  key seals exactly one message, which is why the nonce may be zero.

Covered: keys, derivation, boxes. Not covered: constant-time guarantees beyond those of OpenSSL;
erasing copies that the interpreter or OpenSSL made.
"""

from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg.errors import ParameterError

SUITE: Final = 1
CTX_BYTES: Final = 32
SECRET_BYTES: Final = 32
KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
_PREFIX: Final = b"chorale/v1/"
PURPOSES: Final = ("box", "mask", "self")
_ZERO_NONCE: Final = bytes(12)
_FIELD_PRIME: Final = 2**255 - 19
# The u of every point whose order divides eight, on curve and twist. With the doubling of
# Montgomery 1987 §10.3.1, u(2Q) = (u²-1)²/(4u(u²+486662u+1)): 0 doubles to the neutral element,
# ±1 to 0, and the last two to 1; nothing doubles to -1. Every clamped scalar is a multiple of
# eight and of no other small number, so these and no others give a shared secret of zero.
_LOW_ORDER: Final = frozenset(
    u.to_bytes(32, "little")
    for u in (
        0,
        1,
        _FIELD_PRIME - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    )
)

# The y of every point of edwards25519 whose order divides eight: 1 (order 1), -1 (2), 0 (4) and the
# two of order 8, roots of dy⁴ + 2y² - 1. Under such a key an R of small order and s = 0 are a
# signature over one message in eight at the least, and nobody made it (Chalkias, Garillot,
# Nikolaenko 2020, "Taming the many EdDSAs").
_SMALL_ORDER_Y: Final = frozenset(
    (
        0,
        1,
        _FIELD_PRIME - 1,
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
    )
)

Secret = bytes | bytearray
# Returns that many unpredictable bytes; os.urandom outside tests.
Entropy = Callable[[int], bytes]


class LowOrderError(ValueError):
    """The shared secret would be zero. Callers turn it into a VerificationError with a name."""


def draw(entropy: Entropy, size_bytes: int) -> bytearray:
    """Draw a secret into memory that can be overwritten.

    Raises:
        ParameterError: The source returned another number of bytes.
    """
    drawn = entropy(size_bytes)
    if len(drawn) != size_bytes:
        raise ParameterError("the entropy source returned the wrong number of bytes")
    return bytearray(drawn)


def sign(key: Ed25519PrivateKey, signed_bytes: bytes) -> bytes:
    """Sign a canonical encoding."""
    return key.sign(signed_bytes)


def verify(public_key: bytes, signature: bytes, signed_bytes: bytes) -> bool:
    """Tell whether the signature is the key's over these bytes; never if the key is not sound."""
    if not is_sound_key(public_key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed_bytes)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_sound_key(public_key: bytes) -> bool:
    """Tell whether an Ed25519 key is in its one encoding and not of small order.

    A look-up, made wherever a key comes from somebody else. A key that is no point verifies nothing
    anyway, and one with a part of small order is its owner's alone (docs/adr/0039).
    """
    y = int.from_bytes(public_key, "little") & (2**255 - 1)
    return len(public_key) == KEY_BYTES and y < _FIELD_PRIME and y not in _SMALL_ORDER_Y


def verification_key(key: Ed25519PrivateKey) -> bytes:
    """Return the 32 bytes that verify this key's signatures."""
    return key.public_key().public_bytes_raw()


def agreement_public_key(private_key: Secret) -> bytes:
    """Return the X25519 public key of a 32-byte scalar."""
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def agreement_key(private_key: Secret) -> X25519PrivateKey:
    """Load a 32-byte scalar once for many agreements; OpenSSL derives the public key with it."""
    return X25519PrivateKey.from_private_bytes(private_key)


def agree(private_key: Secret | X25519PrivateKey, peer_public_key: bytes) -> bytes:
    """Compute the X25519 shared secret.

    Raises:
        LowOrderError: The peer's key has low order.
    """
    if isinstance(private_key, X25519PrivateKey):
        private = private_key
    else:
        private = agreement_key(private_key)
    public = X25519PublicKey.from_public_bytes(peer_public_key)
    try:
        shared = private.exchange(public)
    except ValueError as error:
        raise LowOrderError("the peer's key has low order") from error
    if not any(shared):
        raise LowOrderError("the peer's key has low order")
    return shared


def same_point(public_key: bytes) -> bytes:
    """Return one form for all encodings of an X25519 key that give the same shared secrets.

    X25519 ignores the top bit and reduces modulo 2^255 - 19 (RFC 7748 §5), so a copied key can be
    written in another way.
    """
    value = int.from_bytes(public_key, "little") & (2**255 - 1)
    return (value % _FIELD_PRIME).to_bytes(32, "little")


def is_low_order(public_key: bytes) -> bool:
    """Tell whether every shared secret with this key would be zero.

    A look-up: an exchange for each key would be most of what a silo computes in R0. `agree` looks
    at the shared secret itself as well.
    """
    return same_point(public_key) in _LOW_ORDER


def derive_key(secret: Secret, purpose: str, ctx: bytes, *names: str) -> bytes:
    """Derive a 32-byte key for one of PURPOSES from a shared secret or a seed.

    `ctx` has 32 bytes and is one aggregation's; the names are silo ids, in the order the purpose
    fixes.

    Raises:
        ParameterError: Unknown purpose, or a ctx of another length.
    """
    if purpose not in PURPOSES or len(ctx) != CTX_BYTES:
        raise ParameterError("a derivation needs a known purpose and a 32-byte ctx")
    info = _PREFIX + purpose.encode() + ctx
    for name in names:
        encoded = name.encode()
        info += len(encoded).to_bytes(2, "big") + encoded
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def seal(key: bytes, associated: bytes, plaintext: Secret) -> bytes:
    """Seal the one message of a box key."""
    return ChaCha20Poly1305(key).encrypt(_ZERO_NONCE, plaintext, associated)


def unseal(key: Secret, associated: bytes, ciphertext: bytes) -> bytes | None:
    """Open a box, or return None when it does not open under this key and associated data."""
    try:
        return ChaCha20Poly1305(key).decrypt(_ZERO_NONCE, ciphertext, associated)
    except InvalidTag:
        return None
