"""Who this silo is: its keys, its certificate, and the federation root it pinned; on disk too.

Invariants:

1. Keys never leave ``identity/``, mode 0700, and are no part of a ``repr``.
2. ``identity/`` is complete or not there. A new identity takes the place of the one before, which
   stays as ``identity.previous`` until the coordinator accepted the new one. So there is a usable
   identity at every moment: a crash between two renames is healed when the identity is read, and a
   new one that is refused gives way to the old.

Covered: a crash at any point, files that are damaged or open to others. Not covered: keys in
hardware; how a silo joins (``silo_agent/identity/join.py``), when it renews
(``silo_agent/identity/renewal.py``).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from federation.membership.renewal import trust_sha256
from ops.files import replace_file, sync_directory
from silo_agent.errors import IdentityError

if TYPE_CHECKING:
    import grpc

__all__ = [
    "DIRECTORY",
    "Identity",
    "NotJoinedError",
    "forget_previous",
    "has_previous",
    "restore_previous",
]

DIRECTORY: Final = "identity"
_PREVIOUS: Final = "identity.previous"
_PARTIAL: Final = "identity.partial"
_PEM: Final = serialization.Encoding.PEM
_DER: Final = serialization.Encoding.DER


class NotJoinedError(IdentityError):
    """There is no identity in this data directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A silo's keys and what it trusts. The keys are never part of a ``repr``."""

    federation: str
    silo_id: str
    coordinator_address: str
    root_key: bytes
    """The consortium root's 32-byte Ed25519 key."""
    leaf: x509.Certificate
    ca: x509.Certificate
    """The leaf's issuer."""
    also_trusted: tuple[x509.Certificate, ...] = ()
    """Other CAs that the coordinator's certificate may be of, while one replaces another."""
    signing_key: Ed25519PrivateKey = field(repr=False)
    leaf_key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def certificate_expiry_unix_s(self) -> int:
        """When the certificate ends."""
        return int(self.leaf.not_valid_after_utc.timestamp())

    @property
    def certificate_sha256(self) -> bytes:
        """Names the certificate."""
        return hashlib.sha256(self.leaf.public_bytes(_DER)).digest()

    @property
    def trust_sha256(self) -> bytes:
        """Names the set of CAs, as the coordinator does."""
        return trust_sha256([ca.public_bytes(_DER) for ca in (self.ca, *self.also_trusted)])

    def work_seed(self, run_id: str) -> int:
        """A seed for local work that nobody outside can predict, another one for each run.

        HKDF-SHA256 (RFC 5869) of the Ed25519 private key, under a purpose of its own.
        """
        derived = HKDF(hashes.SHA256(), 8, None, b"chorale/v1/work-seed" + run_id.encode())
        return int.from_bytes(derived.derive(self.signing_key.private_bytes_raw()), "big") >> 1

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return mutual TLS credentials that trust the federation's CAs alone."""
        # Only who calls the coordinator needs it; most commands read what is here.
        import grpc

        return grpc.ssl_channel_credentials(
            root_certificates=self._roots_pem(),
            private_key=_private_pem(self.leaf_key),
            certificate_chain=self.leaf.public_bytes(_PEM) + self.ca.public_bytes(_PEM),
        )

    def _roots_pem(self) -> bytes:
        return b"".join(ca.public_bytes(_PEM) for ca in (self.ca, *self.also_trusted))

    @classmethod
    def load(cls, data_dir: Path) -> Identity:
        """Read what ``store`` put into a data directory.

        Raises:
            NotJoinedError: There is none.
            IdentityError: A file is unreadable, or open to other users.
        """
        directory = data_dir / DIRECTORY
        previous = data_dir / _PREVIOUS
        if not directory.exists() and previous.exists():
            # A crash came between two renames.
            previous.rename(directory)
        if not directory.exists():
            raise NotJoinedError(
                f"{data_dir} has no identity: run `chorale-silo join - --data {data_dir}`"
            )
        try:
            facts = json.loads((directory / "identity.json").read_text())
            root = serialization.load_pem_public_key((directory / "root.pub").read_bytes())
            signing = _read_private(directory / "protocol.key")
            leaf_key = _read_private(directory / "leaf.key")
            leaf = x509.load_pem_x509_certificate((directory / "leaf.pem").read_bytes())
            ca, *others = x509.load_pem_x509_certificates((directory / "ca.pem").read_bytes())
            federation, silo_id = str(facts["federation"]), str(facts["silo_id"])
            address = str(facts["coordinator_address"])
        except (OSError, ValueError, TypeError, KeyError, UnsupportedAlgorithm) as error:
            raise IdentityError(f"{directory} cannot be read: {error}") from error
        if (
            not isinstance(root, Ed25519PublicKey)
            or not isinstance(signing, Ed25519PrivateKey)
            or not isinstance(leaf_key, ec.EllipticCurvePrivateKey)
        ):
            raise IdentityError(f"{directory} holds a key of the wrong kind")
        return cls(
            federation=federation,
            silo_id=silo_id,
            coordinator_address=address,
            root_key=root.public_bytes_raw(),
            leaf=leaf,
            ca=ca,
            also_trusted=tuple(others),
            signing_key=signing,
            leaf_key=leaf_key,
        )

    def store(self, data_dir: Path) -> None:
        """Put this identity in the place of the one before, which stays beside it."""
        partial = data_dir / _PARTIAL
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        root = Ed25519PublicKey.from_public_bytes(self.root_key)
        facts = {
            "federation": self.federation,
            "silo_id": self.silo_id,
            "coordinator_address": self.coordinator_address,
        }
        for name, content in (
            ("leaf.key", _private_pem(self.leaf_key)),
            ("protocol.key", _private_pem(self.signing_key)),
            ("leaf.pem", self.leaf.public_bytes(_PEM)),
            ("ca.pem", self._roots_pem()),
            (
                "root.pub",
                root.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
            ),
            ("identity.json", (json.dumps(facts, indent=2, sort_keys=True) + "\n").encode()),
        ):
            replace_file(partial / name, (content,))
        directory, previous = data_dir / DIRECTORY, data_dir / _PREVIOUS
        if directory.exists():
            shutil.rmtree(previous, ignore_errors=True)
            directory.rename(previous)
        partial.rename(directory)
        sync_directory(data_dir)


def has_previous(data_dir: Path) -> bool:
    """Whether nobody knows yet if the coordinator accepts the newest identity."""
    return (data_dir / _PREVIOUS).exists()


def forget_previous(data_dir: Path) -> None:
    """Delete the identity before: the newest one was accepted."""
    previous, partial = data_dir / _PREVIOUS, data_dir / _PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    if previous.exists():
        # Half a directory must never be taken for an identity.
        previous.rename(partial)
        sync_directory(data_dir)
        shutil.rmtree(partial, ignore_errors=True)


def restore_previous(data_dir: Path) -> None:
    """Go back to the identity before: the newest one was refused."""
    directory, previous, partial = (data_dir / name for name in (DIRECTORY, _PREVIOUS, _PARTIAL))
    shutil.rmtree(partial, ignore_errors=True)
    directory.rename(partial)
    previous.rename(directory)
    sync_directory(data_dir)
    shutil.rmtree(partial, ignore_errors=True)


def _read_private(path: Path) -> object:
    if path.stat().st_mode & 0o077:
        raise IdentityError(f"{path} is open to other users: chmod 600 it")
    return serialization.load_pem_private_key(path.read_bytes(), None)


def _private_pem(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
