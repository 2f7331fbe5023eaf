"""Keys on disk: the coordinator's own, the consortium root's, and how any private key is encoded.

Covered: PEM files, 0600 for private keys, a passphrase on one (PKCS 8, scrypt or PBKDF2 as OpenSSL
chooses). Not covered: hardware keys, rotation.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ops.files import replace_file
from secagg.suite import is_sound_key
from server.errors import PkiError

__all__ = [
    "create_signing_key",
    "is_encrypted",
    "is_encrypted_key",
    "load_signing_key",
    "private_pem",
    "public_key_pem",
    "read_public_key",
]


def create_signing_key(path: Path, *, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Make a key and write it, once; encrypted if there is a passphrase.

    Raises:
        PkiError: The file exists.
    """
    if path.exists():
        raise PkiError(f"{path} exists: a signing key is never replaced in place")
    key = Ed25519PrivateKey.generate()
    replace_file(path, (private_pem(key, passphrase),))
    return key


def private_pem(
    key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey, passphrase: bytes | None = None
) -> bytes:
    """Encode a private key as PKCS 8, encrypted if there is a passphrase."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase),
    )


def is_encrypted_key(content: bytes) -> bool:
    """Whether a PEM file is a private key under a passphrase."""
    return b"ENCRYPTED PRIVATE KEY" in content


def is_encrypted(path: Path) -> bool:
    """Whether a private key's file is encrypted.

    Raises:
        PkiError: It cannot be read.
    """
    try:
        return is_encrypted_key(path.read_bytes())
    except OSError as error:
        raise PkiError(f"the signing key {path} cannot be read: {error}") from error


def load_signing_key(path: Path, *, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Read a private key; the passphrase counts if the file is encrypted.

    Raises:
        PkiError: Absent, open to other users, encrypted with another passphrase, or not an
            Ed25519 key.
    """
    locked = is_encrypted(path)
    if locked and passphrase is None:
        raise PkiError(f"{path} is encrypted, and no passphrase was given")
    try:
        if path.stat().st_mode & 0o077:
            raise PkiError(f"{path} is open to other users: chmod 600 it, and find out who read it")
        key = serialization.load_pem_private_key(path.read_bytes(), passphrase if locked else None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        if locked:
            raise PkiError(f"the passphrase does not open {path}") from error
        raise PkiError(f"the signing key {path} cannot be read: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise PkiError(f"{path} is not an Ed25519 key")
    return key


def public_key_pem(public_key: bytes) -> bytes:
    """Encode a public key of 32 bytes."""
    return Ed25519PublicKey.from_public_bytes(public_key).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_public_key(path: Path) -> bytes:
    """Read the 32 bytes of a public key from a PEM file.

    Raises:
        PkiError: Absent, not an Ed25519 public key, or one that proves nobody.
    """
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise PkiError(f"the public key {path} cannot be read: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise PkiError(f"{path} is not an Ed25519 public key")
    raw = key.public_bytes_raw()
    if not is_sound_key(raw):
        raise PkiError(
            f"the public key {path} is of small order, or not in its one encoding: anybody could "
            "sign for it; get the file again from whoever holds the key"
        )
    return raw
