"""Ed25519 keys on disk: the coordinator's own, and the consortium root's public half.

Covered: PEM files, 0600 for private keys. Not covered: passphrases, hardware keys, rotation.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from federation.durable import replace_file
from server.errors import PkiError

__all__ = ["create_signing_key", "load_signing_key", "public_key_pem", "read_public_key"]


def create_signing_key(path: Path) -> Ed25519PrivateKey:
    """Make a key and write it, once.

    Args:
        path: The file.

    Returns:
        The key.

    Raises:
        PkiError: The file exists.
    """
    if path.exists():
        raise PkiError(f"{path} exists: a signing key is never replaced in place")
    key = Ed25519PrivateKey.generate()
    replace_file(
        path,
        (
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        ),
    )
    return key


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key.

    Args:
        path: The file.

    Returns:
        The key.

    Raises:
        PkiError: Absent, open to other users, or not an Ed25519 key.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise PkiError(f"{path} is open to other users: chmod 600 it, and find out who read it")
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise PkiError(f"the signing key {path} cannot be read: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise PkiError(f"{path} is not an Ed25519 key")
    return key


def public_key_pem(public_key: bytes) -> bytes:
    """Encode a public key.

    Args:
        public_key: 32 bytes.

    Returns:
        PEM.
    """
    return Ed25519PublicKey.from_public_bytes(public_key).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_public_key(path: Path) -> bytes:
    """Read a public key.

    Args:
        path: The PEM file.

    Returns:
        32 bytes.

    Raises:
        PkiError: Absent or not an Ed25519 public key.
    """
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise PkiError(f"the public key {path} cannot be read: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise PkiError(f"{path} is not an Ed25519 public key")
    return key.public_bytes_raw()
