"""The doctor's steps about the data directory: modes, keys, and the root key that must be absent.

Covered: modes and owners, pairs of key and certificate, the consortium root's private key anywhere
in the directory as PEM, DER or 32 raw bytes. Not covered: a root key inside an archive or under a
passphrase (an encrypted key is named, not opened), other directories of this host.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ops.doctor.checkup import Verdict, failed, ok, warning
from server.config import CoordinatorConfig, DataPaths
from server.errors import ConfigurationError, PkiError
from server.pki.keys import is_encrypted, is_encrypted_key, load_signing_key, read_public_key
from server.pki.trust import Trust

__all__ = ["judge_directory", "judge_keys", "judge_root_key"]

MAX_SEARCHED_BYTES: Final = 1 << 20
_SEED_BYTES: Final = 32
_PEM_KEY: Final = re.compile(
    rb"-----BEGIN (?:ENCRYPTED )?PRIVATE KEY-----.+?-----END (?:ENCRYPTED )?PRIVATE KEY-----",
    re.DOTALL,
)


def judge_directory(data_dir: Path) -> Verdict:
    """The data directory itself."""
    try:
        found = data_dir.stat()
    except OSError as error:
        return failed(
            f"{data_dir} cannot be used: {error.strerror}",
            "chorale init --data DIR makes one; --data or CHORALE_DATA says where it is",
        )
    if not stat.S_ISDIR(found.st_mode):
        return failed(f"{data_dir} is not a directory", "give the data directory with --data")
    if found.st_uid not in {os.geteuid(), 0} or (found.st_uid == 0 and os.geteuid() != 0):
        return failed(
            f"{data_dir} belongs to user {found.st_uid}, this is user {os.geteuid()}",
            f"run this as the coordinator's user, or chown -R {os.geteuid()} {data_dir}",
        )
    if found.st_mode & 0o077:
        return failed(
            f"{data_dir} has mode {stat.S_IMODE(found.st_mode):04o}: other users can look into it",
            f"chmod 700 {data_dir}",
        )
    if not os.access(data_dir, os.W_OK | os.X_OK):
        return failed(f"{data_dir} cannot be written", f"chmod u+rwx {data_dir}, or remount it rw")
    return ok(f"{data_dir}, mode {stat.S_IMODE(found.st_mode):04o}")


def judge_keys(config: CoordinatorConfig) -> Verdict:
    """Every private key of the coordinator: closed to others, readable, beside its certificate."""
    paths = config.paths
    for path in (*sorted(paths.pki.rglob("*.key")), paths.admin / "admin.key"):
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
        if mode & 0o077:
            return failed(
                f"{path} has mode {mode:04o}: other users can read it",
                f"chmod 600 {path}, and find out who read it",
            )
    for directory, name in ((paths.pki, "server"), (paths.admin, "admin")):
        problem = _pair_problem(directory / f"{name}.key", directory / f"{name}.pem")
        if problem is not None:
            return problem
    try:
        Trust.load(paths.pki, passphrase=config.ca_passphrase())
        load_signing_key(paths.protocol_key)
        read_public_key(paths.root_public_key)
    except PkiError as error:
        return failed(
            str(error),
            "name its passphrase's file as ca_passphrase_file"
            if "passphrase" in str(error)
            else "check that this is the coordinator's directory (--data, CHORALE_DATA) and that "
            "this user may read it; only if it is lost: chorale restore FILE --data NEW_DIRECTORY",
        )
    except ConfigurationError as error:
        return failed(str(error), "correct ca_passphrase_file of coordinator.toml")
    open_cas = [path for path in paths.pki.rglob("ca.key") if not is_encrypted(path)]
    under = "the CA's is not encrypted" if open_cas else "the CA's is encrypted"
    return ok(f"ca, server, admin and protocol keys: mode 0600, each with its certificate; {under}")


def judge_root_key(paths: DataPaths) -> Verdict:
    """Search the data directory for the consortium root's private key."""
    root = read_public_key(paths.root_public_key)
    searched, large, locked = 0, 0, []
    cas = frozenset(paths.pki.rglob("ca.key"))
    for path in _files(paths.data_dir):
        try:
            if path.stat().st_size > MAX_SEARCHED_BYTES:
                large += 1
                continue
            content = path.read_bytes()
        except FileNotFoundError:
            # The coordinator beside this command makes and deletes files meanwhile.
            continue
        searched += 1
        if any(key == root for key in _ed25519_keys(content)):
            return failed(
                f"{path} holds the consortium root's PRIVATE key: whoever has this host can make "
                "rosters",
                f"move it to the root's own machine and delete it here (shred -u {path}); if this "
                "host may have been read by others, make a new root and let every silo join again",
            )
        # Those of the CA were opened by the step before.
        if is_encrypted_key(content) and path not in cas:
            locked.append(path)
    if locked:
        return warning(
            f"{locked[0]} is an encrypted key, which cannot be compared with the root's",
            "move it away if it is the root's",
        )
    beyond = f"; {large} larger than 1 MiB were not read" if large else ""
    return ok(f"the root's private key is in none of {searched} files here{beyond}")


def _pair_problem(key_path: Path, certificate_path: Path) -> Verdict | None:
    restore = "look for what changed it; only if it is lost, restore it from your backup"
    if key_path.name == "admin.key":
        restore = "chorale admin renew"
    try:
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        return failed(f"{key_path} and {certificate_path.name} cannot be read: {error}", restore)
    if key.public_key() != certificate.public_key():
        return failed(f"{key_path} is not the key of {certificate_path.name}", restore)
    return None


def _files(directory: Path) -> Iterator[Path]:
    """Every regular file below; links are not followed."""
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                yield path


def _ed25519_keys(content: bytes) -> Iterator[bytes]:
    """Public halves of the Ed25519 private keys in a file."""
    for block in _PEM_KEY.findall(content):
        try:
            key = serialization.load_pem_private_key(block, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            continue
        if isinstance(key, Ed25519PrivateKey):
            yield key.public_key().public_bytes_raw()
    if len(content) == _SEED_BYTES:
        yield Ed25519PrivateKey.from_private_bytes(content).public_key().public_bytes_raw()
    if content[:1] == b"\x30":
        try:
            der = serialization.load_der_private_key(content, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            return
        if isinstance(der, Ed25519PrivateKey):
            yield der.public_key().public_bytes_raw()
