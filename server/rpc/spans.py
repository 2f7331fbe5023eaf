"""A span for each call that the coordinator serves, and what it tells a silo of its round's span.

Invariants: a handler is as it was where tracing is off; a span begins with the call and ends with
it, refused or not; whose call it is, is not in it; the caller's ``traceparent`` is read strictly
and decides nothing but the trace.

Covered: unary and streaming methods. Not covered: calls that TLS or gRPC refuse before a handler.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.trace import Span, SpanKind

from ops.tracing.calls import named_call, size_of
from ops.tracing.spans import TRACEPARENT, begin, end, is_on, note, read_traceparent

__all__ = ["tell_round", "traced", "traced_stream"]

Context = grpc.aio.ServicerContext[Any, Any]


def traced(
    method: str, call: Callable[[Any, Context], Awaitable[Any]]
) -> Callable[[Any, Context], Awaitable[Any]]:
    """Measure a handler that answers once."""
    if not is_on():
        return call

    async def measured(request: Any, context: Context) -> Any:
        with _served(method, request, context) as span:
            answer = await call(request, context)
            note(span, response_bytes=size_of(answer))
            return answer

    return measured


def traced_stream(
    method: str, call: Callable[[Any, Context], AsyncIterator[Any]]
) -> Callable[[Any, Context], AsyncIterator[Any]]:
    """Measure a handler that answers with a stream."""
    if not is_on():
        return call

    async def measured(request: Any, context: Context) -> AsyncIterator[Any]:
        total = 0
        with _served(method, request, context) as span:
            try:
                async for answer in call(request, context):
                    total += size_of(answer)
                    yield answer
            finally:
                note(span, response_bytes=total)

    return measured


def tell_round(context: Context, traceparent: str) -> None:
    """Let the answer to a silo say which span its round is, if there is one."""
    if traceparent:
        said = tuple(context.trailing_metadata() or ())
        context.set_trailing_metadata((*said, (TRACEPARENT, traceparent)))


@contextmanager
def _served(method: str, request: Any, context: Context) -> Iterator[Span]:
    """A span of the caller's trace, or of its own, that ends as the call does."""
    caller = read_traceparent(context.invocation_metadata())
    name = method.lstrip("/")
    span = begin(name, kind=SpanKind.SERVER, parent=caller, **named_call(method))
    if sent := size_of(request):
        note(span, request_bytes=sent)
    try:
        yield span
    finally:
        code: Any = context.code()
        number = code.value[0] if isinstance(code, grpc.StatusCode) else code or 0
        note(span, code=number)
        end(span, "refused" if number else "")
