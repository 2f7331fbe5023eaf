"""The doctor's steps about the coordinator's certificates and its clock.

Covered: validity, issuer, host names and usages of CA, server and admin certificate; a clock that
is behind what this host wrote itself. Not covered: a clock that is wrong and always was; no other
clock is asked. What the running server presents is looked at by ``network.py``.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID

from ops.doctor.checkup import Outcome, Verdict, failed, judge_validity, ok
from server.config import CoordinatorConfig
from server.pki.authority import OPERATOR_DOMAIN
from server.pki.trust import Trust

__all__ = ["judge_admin", "judge_ca", "judge_clock", "judge_server"]

CA_SOON: Final = dt.timedelta(days=60)
SERVER_SOON: Final = dt.timedelta(days=14)
ADMIN_SOON: Final = dt.timedelta(minutes=30)
CLOCK_SLACK: Final = dt.timedelta(minutes=2)
_RENEW_ADMIN: Final = "chorale admin renew"


def judge_ca(config: CoordinatorConfig, now: dt.datetime) -> Verdict:
    """The issuing CA, and the one it replaces while a rotation lasts."""
    trust = Trust.load(config.paths.pki, passphrase=config.ca_passphrase())
    for ca in trust.certificates():
        try:
            constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
        except x509.ExtensionNotFound:
            constraints = None
        if constraints is None or not constraints.ca:
            return failed(
                "a trusted CA's certificate is not a CA's", "restore pki/ from your backup"
            )
    verdict = judge_validity(
        "the CA",
        trust.issuing.certificate,
        now=now,
        soon=CA_SOON,
        renew="chorale ca rotate --overlap 30d",
    )
    retiring = trust.retiring
    if verdict.outcome is not Outcome.OK or retiring is None:
        return verdict
    until = dt.datetime.fromtimestamp(retiring.until_unix_s, dt.UTC)
    return ok(f"{verdict.found}; the one before it is trusted until {_shown(until)}")


def judge_server(config: CoordinatorConfig, now: dt.datetime) -> Verdict:
    """The server certificate on disk: issuer, names, validity."""
    renew = "restart chorale-coordinator serve, which renews it"
    trusted = Trust.load(config.paths.pki, passphrase=config.ca_passphrase()).certificates()
    server = _read(config.paths.pki / "server.pem")
    foreign = _issuer_problem(server, trusted, "pki/server.pem", renew)
    if foreign is not None:
        return foreign
    if ExtendedKeyUsageOID.SERVER_AUTH not in _usages(server):
        return failed("pki/server.pem is not a server's certificate", renew)
    absent = [name for name in config.host_names if not _names(server, name)]
    if absent:
        return failed(
            f"the server certificate does not name {', '.join(absent)}, which host_names of "
            "coordinator.toml does: silos that dial it refuse the connection",
            "take the name out of coordinator.toml, or issue a certificate with it: " + renew,
        )
    verdict = judge_validity(
        "the server certificate", server, now=now, soon=SERVER_SOON, renew=renew
    )
    if verdict.outcome is not Outcome.OK:
        return verdict
    return ok(f"{verdict.found}, names {', '.join(config.host_names)}")


def judge_admin(config: CoordinatorConfig, now: dt.datetime) -> Verdict:
    """The admin's client certificate. Expired, it shows only as UNAVAILABLE over gRPC."""
    trusted = Trust.load(config.paths.pki, passphrase=config.ca_passphrase()).certificates()
    admin = _read(config.paths.admin / "admin.pem")
    foreign = _issuer_problem(admin, trusted, "admin/admin.pem", _RENEW_ADMIN)
    if foreign is not None:
        return foreign
    uris = _alternative_names(admin).get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1 or not uris[0].startswith(f"spiffe://{OPERATOR_DOMAIN}/"):
        return failed("admin/admin.pem is not an operator's certificate", _RENEW_ADMIN)
    verdict = judge_validity(
        "the admin certificate", admin, now=now, soon=ADMIN_SOON, renew=_RENEW_ADMIN
    )
    if verdict.outcome is not Outcome.OK:
        return verdict
    return ok(f"{verdict.found}, {uris[0]}")


def judge_clock(config: CoordinatorConfig, now: dt.datetime) -> Verdict:
    """The clock against what this host wrote itself."""
    written = {
        path: dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC)
        for path in (config.paths.audit, config.paths.config, config.paths.admin / "admin.pem")
        if path.exists()
    }
    newest = max(written, key=lambda path: written[path], default=None)
    if newest is not None and written[newest] > now + CLOCK_SLACK:
        return failed(
            f"the clock says {_shown(now)}, and {newest} was written at {_shown(written[newest])}",
            "set the clock: timedatectl set-ntp true",
        )
    return ok(f"{_shown(now)}, not behind anything written here; no other clock was asked")


def _issuer_problem(
    leaf: x509.Certificate, trusted: tuple[x509.Certificate, ...], what: str, renew: str
) -> Verdict | None:
    for ca in trusted:
        try:
            leaf.verify_directly_issued_by(ca)
        except (InvalidSignature, ValueError, TypeError):
            continue
        return None
    return failed(f"{what} was not issued by a CA that is trusted now", renew)


def _read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _usages(certificate: x509.Certificate) -> tuple[x509.ObjectIdentifier, ...]:
    try:
        return tuple(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return ()


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def _names(certificate: x509.Certificate, name: str) -> bool:
    names = _alternative_names(certificate)
    try:
        return ipaddress.ip_address(name) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        return name in names.get_values_for_type(x509.DNSName)


def _shown(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
