"""A span for each call that the coordinator serves, and what it tells a silo of its round's span.

Invariants: a handler is as it was where tracing is off; a span begins with the call and ends with
it, refused or not; whose call it is, is not in it; the caller's ``traceparent`` is read strictly
and decides nothing but the trace.

Covered: unary and streaming methods. Not covered: calls that TLS or gRPC refuse before a handler.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc

from ops.tracing.calls import named_call, size_of
from ops.tracing.model import TRACEPARENT, Span, read_traceparent
from ops.tracing.spans import begin, is_on

__all__ = ["tell_round", "traced", "traced_stream"]

Context = grpc.aio.ServicerContext[Any, Any]
_OK: Final = 0


def traced(
    method: str, call: Callable[[Any, Context], Awaitable[Any]]
) -> Callable[[Any, Context], Awaitable[Any]]:
    """Measure a handler that answers once."""
    if not is_on():
        return call

    async def measured(request: Any, context: Context) -> Any:
        span = _begun(method, request, context)
        try:
            answer = await call(request, context)
            span.note(response_bytes=size_of(answer))
            return answer
        finally:
            _end(span, context)

    return measured


def traced_stream(
    method: str, call: Callable[[Any, Context], AsyncIterator[Any]]
) -> Callable[[Any, Context], AsyncIterator[Any]]:
    """Measure a handler that answers with a stream."""
    if not is_on():
        return call

    async def measured(request: Any, context: Context) -> AsyncIterator[Any]:
        span, total = _begun(method, request, context), 0
        try:
            async for answer in call(request, context):
                total += size_of(answer)
                yield answer
        finally:
            span.note(response_bytes=total)
            _end(span, context)

    return measured


def tell_round(context: Context, traceparent: str) -> None:
    """Let the answer to a silo say which span its round is.

    Args:
        context: The call's.
        traceparent: The span; empty if there is none.
    """
    if traceparent:
        said = tuple(context.trailing_metadata() or ())
        context.set_trailing_metadata((*said, (TRACEPARENT, traceparent)))


def _begun(method: str, request: Any, context: Context) -> Span:
    caller = read_traceparent(context.invocation_metadata())
    span = begin(method.lstrip("/"), kind="server", parent=caller, root=caller is None)
    span.note(**named_call(method))
    if sent := size_of(request):
        span.note(request_bytes=sent)
    return span


def _end(span: Span, context: Context) -> None:
    code: Any = context.code()
    number = _OK if code is None else code.value[0] if isinstance(code, grpc.StatusCode) else code
    span.note(code=number)
    span.end("" if number == _OK else "refused")
