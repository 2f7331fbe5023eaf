"""Making a coordinator's data directory: ``chorale init``.

Invariants:

1. An existing coordinator is never overwritten: ``coordinator.toml`` is written last, and its
   presence refuses a second founding.
2. The consortium root's public key is all that enters of it.

Covered: CA, server and admin certificates, protocol key, database, audit genesis. Not covered:
moving a directory to another host; the server certificate names its hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from federation.invite import FEDERATION_NAME, SILO_ID
from server.audit import AuditEvent, AuditLog
from server.config import CoordinatorConfig, DataPaths, write_config
from server.durable import private_directory, write_durably
from server.errors import ConfigurationError, PkiError
from server.keys import create_signing_key, public_key_pem, read_public_key
from server.pki import CertificateAuthority, not_after_unix_s
from server.store import Store

__all__ = ["Founding", "found", "renew_admin"]

LOOPBACK = ("localhost", "127.0.0.1")
"""Always in the server certificate: the admin CLI runs beside the coordinator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Founding:
    """What a new coordinator is made of."""

    federation: str
    hosts: tuple[str, ...]
    """What silos dial, the first by default."""
    root_public_key: Path
    """``root.pub``, from ``chorale root init``."""
    listen: str = "0.0.0.0:7443"
    enrol_listen: str = "0.0.0.0:7444"
    probes_listen: str = "127.0.0.1:7445"


def found(data_dir: Path, founding: Founding) -> CoordinatorConfig:
    """Make a data directory.

    Args:
        data_dir: Created with mode 0700; left-overs of an interrupted founding are refused.
        founding: What to make.

    Returns:
        The configuration.

    Raises:
        ConfigurationError: There is a coordinator already, or a value is refused.
        PkiError: The root's public key cannot be read, or a host name is malformed.
    """
    paths = DataPaths(data_dir=data_dir)
    if data_dir.exists() and any(data_dir.iterdir()):
        raise ConfigurationError(f"{data_dir} is not empty: choose a new directory")
    if FEDERATION_NAME.fullmatch(founding.federation) is None:
        raise ConfigurationError(
            "a federation's name has lower-case letters, digits, dots and dashes, at most 63"
        )
    root_key = read_public_key(founding.root_public_key)
    hosts = tuple(dict.fromkeys((*founding.hosts, *LOOPBACK)))
    authority = CertificateAuthority.create(founding.federation)
    server = authority.issue_server(hosts)
    private_directory(data_dir)
    authority.save(paths.pki)
    server.save(paths.pki, "server")
    authority.issue_admin("admin").save(paths.admin, "admin")
    signing_key = create_signing_key(paths.protocol_key)
    write_durably(paths.root_public_key, public_key_pem(root_key), mode=0o644)
    config = write_config(
        data_dir,
        federation=founding.federation,
        host_names=hosts,
        listen=founding.listen,
        enrol_listen=founding.enrol_listen,
        probes_listen=founding.probes_listen,
    )
    Store(config.database).close()
    AuditLog(paths.audit).append(
        AuditEvent.GENESIS,
        federation=founding.federation,
        ca_sha256=authority.sha256.hex(),
        root_key=root_key.hex(),
        coordinator_key=signing_key.public_key().public_bytes_raw().hex(),
    )
    return config


def renew_admin(config: CoordinatorConfig, name: str) -> int:
    """Issue a new admin certificate for a day.

    Args:
        config: The coordinator's configuration; its CA key must be readable.
        name: Who it is for.

    Returns:
        When it ends, Unix time.

    Raises:
        PkiError: The CA cannot be read, or the name is malformed.
    """
    if SILO_ID.fullmatch(name) is None:
        raise PkiError("an admin's name has lower-case letters, digits and dashes, at most 63")
    authority = CertificateAuthority.load(config.paths.pki, config.federation)
    leaf = authority.issue_admin(name)
    leaf.save(config.paths.admin, "admin")
    AuditLog(config.paths.audit).append(AuditEvent.ADMIN_CERTIFICATE_ISSUED, admin=name)
    return not_after_unix_s(leaf.certificate)
