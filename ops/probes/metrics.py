"""Who is shown ``/metrics`` of a daemon whose figures are nobody else's.

Invariants:

1. Beyond this machine's loopback the figures are shown over TLS and to whoever has the token, and
   otherwise to nobody. What counts is where the port listens: behind a published port a stranger's
   connection may come from loopback.
2. Where a token is named, loopback needs it as well.
3. The token is read for each request, so a new one needs no restart, and is compared in constant
   time. A file that cannot be used shows the figures to nobody.

``/livez`` and ``/readyz`` say nothing about data and ask nobody.

Covered: a missing, wrong, short or unreadable token. Not covered: the coordinator, whose figures
are public among the members.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from ops.address import is_loopback
from ops.logs.logger import get_logger

__all__ = ["MetricsAccess"]

log = get_logger(__name__)

LEAST_TOKEN_CHARS: Final = 16
MOST_TOKEN_BYTES: Final = 4096
_SCHEME: Final = "Bearer "


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsAccess:
    """The rule of one port."""

    host: str
    """Where it listens."""
    encrypted: bool
    """Whether it has TLS."""
    token_file: Path | None
    """Holds the token; nobody needs one if unset."""

    @property
    def is_shown(self) -> bool:
        """Whether anybody can be shown the figures."""
        return is_loopback(self.host) or (self.encrypted and self.token_file is not None)

    def refusal(self, authorization: str) -> tuple[HTTPStatus, str] | None:
        """What is answered to a request instead of the figures; None to show them.

        The header ``authorization`` is as it was sent, and empty without one.
        """
        if not self.is_shown:
            return HTTPStatus.FORBIDDEN, (
                "beyond loopback metrics need TLS and a token: probes_certificate, probes_key and "
                "probes_token_file"
            )
        if self.token_file is None:
            return None
        token = _read(self.token_file)
        given = authorization.removeprefix(_SCHEME) if authorization.startswith(_SCHEME) else ""
        if token is None or not hmac.compare_digest(given.encode(), token.encode()):
            return HTTPStatus.UNAUTHORIZED, "metrics need the token of probes_token_file"
        return None


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            token = file.read(MOST_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("probe_token_unusable", reason=error)
        return None
    return token if len(token) >= LEAST_TOKEN_CHARS else None
