"""Making a coordinator's data directory: ``chorale init``.

Invariants:

1. An existing coordinator is never overwritten: ``coordinator.toml`` is written last, and its
   presence refuses a second founding.
2. The consortium root's public key is all that enters of it.

Covered: CA, server and admin certificates, protocol key, database, audit genesis. Not covered:
moving a directory to another host; the server certificate names its hosts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from federation.membership.invite import SILO_ID
from ops.address import split_address
from ops.files import private_directory, replace_file
from server.audit import AuditEvent, AuditLog
from server.config import (
    CoordinatorConfig,
    DataPaths,
    read_passphrase,
    require_host,
    write_config,
)
from server.errors import FoundingError, PkiError
from server.members.terms import checked_terms, described
from server.pki.authority import CertificateAuthority, not_after_unix_s
from server.pki.keys import create_signing_key, public_key_pem, read_public_key
from server.pki.trust import Trust
from server.store import Store
from server.store.federation import FederationRow
from server.store.served import database_in_force, record_served

__all__ = ["Founding", "create_configured", "found", "renew_admin"]

LOOPBACK = ("localhost", "127.0.0.1")
"""Always in the server certificate: the admin CLI runs beside the coordinator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Founding:
    """What a new coordinator is made of."""

    hosts: tuple[str, ...]
    """What silos dial, the first by default."""
    root_public_key: Path
    """``root.pub``, from ``chorale root init``."""
    federation: str | None = None
    """Created at once with the default terms; None leaves it to ``chorale federation create``."""
    listen: str = "0.0.0.0:7443"
    enrol_listen: str = "0.0.0.0:7444"
    probes_listen: str = "127.0.0.1:7445"
    ca_passphrase_file: Path | None = None
    """Encrypts the CA's key; it stays a plain file if None."""


def found(data_dir: Path, founding: Founding) -> CoordinatorConfig:
    """Make a data directory of mode 0700.

    Left-overs of an interrupted founding are refused.

    Raises:
        FoundingError: There is a coordinator already, a value is refused, or the root's public key
            cannot be read; nothing was made.
        TermValueError: The federation cannot have this name.
        ConfigurationError: The passphrase's file cannot be used.
    """
    paths = DataPaths(data_dir=data_dir)
    if data_dir.exists() and any(data_dir.iterdir()):
        raise FoundingError(f"{data_dir} is not empty: choose a new directory")
    if founding.federation is not None:
        checked_terms(FederationRow(name=founding.federation))
    root_key = _checked(founding)
    passphrase_file = founding.ca_passphrase_file and founding.ca_passphrase_file.absolute()
    passphrase = read_passphrase(passphrase_file) if passphrase_file else None
    hosts = tuple(dict.fromkeys((*founding.hosts, *LOOPBACK)))
    authority = CertificateAuthority.create(founding.federation or hosts[0])
    server = authority.issue_server(hosts)
    private_directory(data_dir)
    authority.save(paths.pki, passphrase=passphrase)
    server.save(paths.pki, "server")
    authority.issue_admin("admin").save(paths.admin, "admin")
    signing_key = create_signing_key(paths.protocol_key)
    replace_file(paths.root_public_key, (public_key_pem(root_key),), mode=0o644)
    config = write_config(
        data_dir,
        federation=founding.federation,
        host_names=hosts,
        listen=founding.listen,
        enrol_listen=founding.enrol_listen,
        probes_listen=founding.probes_listen,
        ca_passphrase_file=passphrase_file,
    )
    audit = AuditLog(paths.audit)
    audit.append(
        AuditEvent.GENESIS,
        hosts=hosts,
        ca_sha256=authority.sha256.hex(),
        root_key=root_key.hex(),
        coordinator_key=signing_key.public_key().public_bytes_raw().hex(),
    )
    store = Store(database_in_force(config), create=True)
    if config.database_url:
        # Without a URL the service may have one that nobody gave here: it decides when it starts.
        record_served(database_in_force(config), config.data_dir)
    create_configured(config, store, audit)
    store.close()
    return config


def _checked(founding: Founding) -> bytes:
    """Refuse what could not be written or used later; return the root's public key."""
    try:
        for host in founding.hosts:
            require_host(host)
        for address in (founding.listen, founding.enrol_listen, founding.probes_listen):
            split_address(address)
        return read_public_key(founding.root_public_key)
    except (ValueError, PkiError) as error:
        raise FoundingError(str(error)) from error


def create_configured(config: CoordinatorConfig, store: Store, audit: AuditLog) -> None:
    """Create the federation that ``coordinator.toml`` names, unless there is one.

    Raises:
        FederationExistsError: There is one of another name.
    """
    if config.federation is None:
        return
    known = store.federation.current()
    if known is not None and known.name == config.federation:
        return
    terms = FederationRow(name=config.federation, created_unix_s=int(time.time()))
    with store.transaction():
        store.federation.create(terms)
        audit.append(AuditEvent.FEDERATION_CREATED, **described(terms))


def renew_admin(
    config: CoordinatorConfig, name: str, *, role: str = "admin", out: Path | None = None
) -> int:
    """Issue a new operator's certificate for a day, and return when it ends, Unix time.

    The CA key must be readable. The role ``viewer`` is for reading only. ``out`` is a directory for
    somebody else to carry away, with the certificate and where to dial; this data directory's own
    ``admin`` if None.

    Raises:
        PkiError: The CA cannot be read, or the name is malformed.
    """
    if SILO_ID.fullmatch(name) is None:
        raise PkiError("an admin's name has lower-case letters, digits and dashes, at most 63")
    trust = Trust.load(config.paths.pki, passphrase=config.ca_passphrase())
    leaf = trust.issuing.issue_admin(name, role=role)
    leaf = replace(leaf, also_trusted=trust.certificates()[1:])
    paths = config.paths
    if out is not None:
        paths = DataPaths(data_dir=private_directory(out))
        replace_file(paths.config, (config.paths.config.read_bytes(),), mode=0o640)
    # First the record: a certificate that nobody can look up must not exist.
    AuditLog(config.paths.audit).append(AuditEvent.ADMIN_CERTIFICATE_ISSUED, admin=name, role=role)
    leaf.save(paths.admin, "admin")
    return not_after_unix_s(leaf.certificate)
