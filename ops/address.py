"""Where something listens: ``host:port``, and whether that is this machine alone.

Covered: names, IPv4, IPv6 in brackets, port 0. Not covered: whether the port is free.
"""

from __future__ import annotations

import ipaddress
from typing import Final

__all__ = ["ADDRESS_FILE", "is_loopback", "joined_address", "split_address"]

ADDRESS_FILE: Final = "probes.address"
"""Where a daemon that was given port 0 says, in its data directory, which port its probes have."""


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``; an IPv6 host is in brackets, which do not come back.

    Raises:
        ValueError: It is not of that form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ValueError(f"{address!r}: an IPv6 address needs brackets")
    return (host[1:-1] if bracketed else host), int(port)


def joined_address(host: str, port: int) -> str:
    """``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, whatever a name server says.

    It is an address without brackets, or a name; of names only ``localhost`` is.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
