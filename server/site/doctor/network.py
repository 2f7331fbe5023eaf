"""The doctor's steps about the network: ports, names, TCP, TLS and one authenticated call.

Covered: a coordinator that does not run (a warning: the doctor is also asked before the first
start), another program on its ports, advertised names without an address, a chain, a name or a
client certificate that TLS refuses, an address that is not reached from here. Not covered: what
silos see from where they are; ``chorale-silo doctor`` looks from there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from federation.errors import VersionError
from federation.version import Version, read_version, this_version
from ops.address import split_address
from ops.doctor.checkup import Verdict, failed, ok, warning
from ops.doctor.reach import (
    ClientPair,
    HandshakeError,
    ReachError,
    UnresolvedNameError,
    connect,
    resolve,
    shake_hands,
    split_host_port,
)
from server.config import CoordinatorConfig
from server.pki.trust import Trust

__all__ = [
    "Called",
    "judge_call",
    "judge_names",
    "judge_ports",
    "judge_tcp",
    "judge_tls",
    "judge_versions",
]

TIMEOUT_S: Final = 5.0


def judge_ports(config: CoordinatorConfig) -> Verdict:
    """Whether the ports are served or free; that for joining may be free beside the others."""
    served, free = [], []
    for address in (config.listen, config.enrol_listen, config.probes_listen):
        if _is_served(address):
            served.append(address)
        else:
            problem = _bind_problem(address)
            if problem is not None:
                return failed(
                    f"nobody listens on {address}, and it cannot be bound: {problem}",
                    "choose another address in coordinator.toml (a port below 1024 needs rights)",
                )
            free.append(address)
    if not served:
        return warning(
            f"no coordinator is running: {', '.join(free)} are free",
            f"chorale-coordinator serve --data {config.data_dir}",
            stops=True,
        )
    if free == [config.enrol_listen]:
        return ok(f"served: {', '.join(served)}; {free[0]} opens while somebody is invited")
    if free:
        return failed(
            f"somebody listens on {', '.join(served)}, nobody on {', '.join(free)}",
            "stop the program that holds the port (ss -ltnp), or choose other ports",
        )
    return ok(f"served: {', '.join(served)}")


def judge_names(config: CoordinatorConfig) -> Verdict:
    """Whether what silos are told to dial has an address."""
    hosts = dict.fromkeys(
        split_host_port(address)[0] for address in (config.dial_coordinator, config.dial_enrolment)
    )
    found = []
    for host in hosts:
        try:
            addresses = resolve(host)
        except UnresolvedNameError as error:
            return warning(
                f"silos are told to dial {host}, and from here {error}",
                f"make a DNS record for {host}; if only silos can resolve it, all is well",
            )
        found.append(f"{host} is {', '.join(addresses)}")
    return ok("; ".join(found))


def judge_tcp(config: CoordinatorConfig) -> Verdict:
    """Whether the advertised addresses are reached from here."""
    addresses = [config.dial_coordinator]
    if _is_served(config.enrol_listen):
        addresses.append(config.dial_enrolment)
    for address in addresses:
        try:
            resolve(split_host_port(address)[0])
            connect(address, timeout_s=TIMEOUT_S)
        except ReachError as error:
            return warning(
                f"silos are told to dial {address}, and from here {error}",
                "open the port in the firewall; if only silos are let through, all is well",
            )
    return ok(f"{' and '.join(addresses)}: reached")


def judge_tls(config: CoordinatorConfig) -> Verdict:
    """Shake hands with the open ports as a client: chain, name, and the admin certificate."""
    admin = config.paths.admin
    trusted = Trust.load(config.paths.pki, passphrase=config.ca_passphrase()).certificates()
    pair = ClientPair(certificate=admin / "admin.pem", key=admin / "admin.key")
    said = []
    for listen, client in ((config.listen, pair), (config.enrol_listen, None)):
        if client is None and not _is_served(listen):
            continue
        try:
            version = shake_hands(
                _local(listen),
                server_name=config.host_names[0],
                trusted=trusted,
                client=client,
                timeout_s=TIMEOUT_S,
            )
        except HandshakeError as error:
            return failed(f"{listen}: {error} ({error.stage.value})", _fix(error))
        except ReachError as error:
            return failed(str(error), "restart chorale-coordinator serve")
        said.append(f"{listen} {version}")
    return ok(f"chain, name {config.host_names[0]} and admin certificate taken: {', '.join(said)}")


def judge_versions(running: Version | None) -> Verdict:
    """What is installed here, and what the coordinator that serves was started with.

    ``running`` is what it says; None if it did not answer.
    """
    ours = this_version()
    if running is None:
        return ok(f"chorale {ours} is installed; no running coordinator has answered")
    if running != ours:
        return failed(
            f"chorale {ours} is installed, and a coordinator of {running} is running",
            "restart chorale-coordinator serve with what is installed, or use its installation",
        )
    return ok(f"chorale {ours} is installed and running")


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """What one authenticated call brought."""

    silos: int
    """How many are enrolled or invited."""
    version: Version
    """What the coordinator says that it runs."""


def judge_call(call: Callable[[], Called]) -> tuple[Verdict, Version | None]:
    """Make one authenticated call, which tells what the coordinator runs if it answers."""
    import grpc

    try:
        called = call()
    except VersionError as error:
        return failed(f"the answer is not chorale's: {error}", "ss -ltnp shows who answers"), None
    except grpc.RpcError as error:
        found: Any = error.trailing_metadata()
        trailers = dict(found or ())
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return failed(
                "the coordinator was reached, and did not answer in time",
                "it is slow: look at this machine's load and disk, and whether somebody holds the "
                "database (storage_failed in its log)",
            ), None
        reason = str(trailers.get("chorale-reason", error.code().name.lower()))
        hint = str(trailers.get("chorale-hint", "")) or "chorale admin renew"
        verdict = failed(f"the coordinator refused: {reason}: {error.details()}", hint)
        return verdict, _version(found) if "chorale-reason" in trailers else None
    text = f"an authenticated call was answered: {called.silos} silos are enrolled or invited"
    return ok(text), called.version


def _version(found: Any) -> Version | None:
    try:
        return read_version(found)
    except VersionError:
        return None


def _fix(error: HandshakeError) -> str:
    return {
        "client": "chorale admin renew",
        "untrusted": "another program or another coordinator listens there: ss -ltnp shows which",
        "name": "the server runs with an older certificate: restart chorale-coordinator serve",
        "expired": "restart chorale-coordinator serve, which renews the server certificate",
        "not_yet_valid": "set this machine's clock: timedatectl set-ntp true",
        "no_tls": "another program listens there: ss -ltnp shows which",
    }[error.stage.value]


def _local(listen: str) -> str:
    """Where a program on this host reaches what listens so."""
    host, port = split_address(listen)
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            return f"127.0.0.1:{port}" if address.version == 4 else f"[::1]:{port}"
        return f"[{host}]:{port}" if address.version == 6 else f"{host}:{port}"
    return f"{host}:{port}"


def _is_served(listen: str) -> bool:
    try:
        connect(_local(listen), timeout_s=TIMEOUT_S)
    except ReachError:
        return False
    return True


def _bind_problem(listen: str) -> str | None:
    host, port = split_address(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return str(error.strerror or error)
    return None
