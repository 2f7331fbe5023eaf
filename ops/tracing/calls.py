"""A span for each call that a process makes over gRPC, and its ``traceparent`` beside the call.

Invariants: a channel is as it was where tracing is off; a span says which method, how it ended and
how many bytes were sent and received, and nothing of what they are; an error of tracing's own is
none of the call's.

Covered: calls that wait for their answer, streams either way. Not covered: the bytes of a streamed
answer, which its reader counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import grpc
from opentelemetry.trace import Span, SpanKind

from ops.tracing.spans import (
    TRACEPARENT,
    begin,
    end,
    is_on,
    note,
    read_traceparent,
    traceparent_of,
)

__all__ = ["named_call", "size_of", "with_spans"]

Hear = Callable[[Span], None]
_UNKNOWN: Final = 2
"""gRPC's own number for a failure that has none."""


def with_spans(channel: grpc.Channel, *, hear_from: str = "", hear: Hear | None = None) -> Any:
    """Measure what is called over a channel, if tracing is on; returns the channel to use.

    ``hear_from`` is a method whose answers say which span the peer is in, as ``traceparent``;
    ``hear`` is told what each of them says.
    """
    if not is_on():
        return channel
    return grpc.intercept_channel(channel, _Spans(hear_from, hear))


def named_call(method: str) -> dict[str, Any]:
    """The attributes that a call of ``/package.Service/Method`` has on either side."""
    _, service, name = method.split("/")
    return {"system": "grpc", "service": service, "method": name}


def size_of(message: Any) -> int:
    """How many bytes a message has; 0 for what is none."""
    if isinstance(message, bytes):
        return len(message)
    measure = getattr(message, "ByteSize", None)
    return 0 if measure is None else int(measure())


class _Details(NamedTuple):
    """What gRPC asks of the details of a call."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Spans(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]  # generic in the stubs only
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
):
    """Every kind of call that our services have."""

    def __init__(self, hear_from: str, hear: Hear | None) -> None:
        self._hear_from = hear_from
        self._hear = hear

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        span, details = _begun(client_call_details)
        note(span, request_bytes=size_of(request))
        answer = continuation(details, request)
        self._end(span, details.method, answer)
        return answer

    def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        span, details = _begun(client_call_details)
        answer = continuation(details, _counted(request_iterator, span))
        self._end(span, details.method, answer)
        return answer

    def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        span, details = _begun(client_call_details)
        note(span, request_bytes=size_of(request))
        answers = continuation(details, request)
        # It runs until its end, whoever reads it.
        answers.add_done_callback(lambda ended: _end(span, ended))
        return answers

    def _end(self, span: Span, method: str, answer: Any) -> None:
        if self._hear is not None and method == self._hear_from and _code(answer) == 0:
            self._hear(read_traceparent(answer.trailing_metadata()))
        if _code(answer) == 0:
            note(span, response_bytes=size_of(answer.result()))
        _end(span, answer)


def _begun(given: Any) -> tuple[Span, _Details]:
    method = given.method
    span = begin(method.lstrip("/"), kind=SpanKind.CLIENT, **named_call(method))
    said = given.metadata or ()
    if traceparent := traceparent_of(span):
        said = (*said, (TRACEPARENT, traceparent))
    return span, _Details(
        method=method,
        timeout=given.timeout,
        metadata=said,
        credentials=given.credentials,
        wait_for_ready=getattr(given, "wait_for_ready", None),
        compression=getattr(given, "compression", None),
    )


def _end(span: Span, answer: Any) -> None:
    code = _code(answer)
    note(span, code=code)
    end(span, "" if code == 0 else _name(code))


def _code(answer: Any) -> int:
    """The status of a call that is over."""
    code = answer.code()
    return int(code.value[0]) if isinstance(code, grpc.StatusCode) else _UNKNOWN


def _name(number: int) -> str:
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), "UNKNOWN")


def _counted(messages: Iterable[Any], span: Span) -> Iterator[Any]:
    total = 0
    for message in messages:
        total += size_of(message)
        # Set each time: gRPC may stop reading before the end.
        note(span, request_bytes=total)
        yield message
