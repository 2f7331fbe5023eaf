"""What a span is and may say, and how one process names a span to another.

Invariants:

1. A span's attributes are those of ``ATTRIBUTES``, each of a declared form. No payload, no id, no
   text, no error's words.
2. A ``traceparent`` from a peer is read strictly: another form, or two of them, count as none.

Covered: W3C Trace Context, version 00. Not covered: ``tracestate`` and baggage, which are not sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ops.logs.events import Kind

__all__ = ["ATTRIBUTES", "NO_SPAN", "TRACEPARENT", "Span", "Traceparent", "read_traceparent"]

TRACEPARENT: Final = "traceparent"
ATTRIBUTES: Final = MappingProxyType(
    {
        "attempt": ("chorale.attempt", Kind.NUMBER),
        "bytes": ("chorale.bytes", Kind.NUMBER),
        "code": ("rpc.grpc.status_code", Kind.NUMBER),
        "error": ("error.type", Kind.NAME),
        "method": ("rpc.method", Kind.NAME),
        "outcome": ("chorale.outcome", Kind.NAME),
        "request_bytes": ("chorale.request_bytes", Kind.NUMBER),
        "response_bytes": ("chorale.response_bytes", Kind.NUMBER),
        "round": ("chorale.round", Kind.NUMBER),
        "service": ("rpc.service", Kind.NAME),
        "step": ("chorale.step", Kind.NUMBER),
        "system": ("rpc.system", Kind.NAME),
    }
)
"""What a span may say of itself: our word, OpenTelemetry's key, and the form of its values."""
_FORM: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Traceparent:
    """Where a span of another process is."""

    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        """As W3C Trace Context, version 00, writes it."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


class Span:
    """A span that is not measured; those that are derive from it."""

    @property
    def traceparent(self) -> str:
        """What a peer is told of it; empty if there is nothing to tell."""
        return ""

    def note(self, **attributes: int | str) -> None:
        """Add attributes; those that ``ATTRIBUTES`` does not allow are left out."""

    def end(self, error: str = "") -> None:
        """End it; only the first time counts.

        Args:
            error: The type of what went wrong; empty if nothing did.
        """


NO_SPAN: Final = Span()


def read_traceparent(words: Iterable[tuple[Any, Any]] | None) -> Traceparent | None:
    """Read the metadata of a peer's call or answer.

    Args:
        words: All of it.

    Returns:
        Its span; None if it names none, two, or one in another form than version 00's.
    """
    said = [value for key, value in words or () if key == TRACEPARENT]
    if len(said) != 1 or not isinstance(said[0], str):
        return None
    found = _FORM.fullmatch(said[0])
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    if not trace_id or not span_id:
        return None
    return Traceparent(trace_id=trace_id, span_id=span_id, sampled=bool(flags & _SAMPLED))
