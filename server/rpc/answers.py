"""What a caller is told when a handler refuses: the catalogue's answer, counted.

Covered: every exception a handler can raise; what the catalogue does not know becomes INTERNAL.
Not covered: what to say, which is the catalogue's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol, TypeVar

import grpc

from federation.version import this_version
from ops.logs.logger import get_logger
from server.rpc.catalogue import Answer, describe

__all__ = ["abort", "answer_errors"]

log = get_logger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


class RefusalMetrics(Protocol):
    """What :func:`answer_errors` needs of the metrics."""

    def count_refusal(self, reason: str) -> None:
        """Count one refused message."""


async def abort(context: Context, error: Exception) -> NoReturn:
    """End the RPC with the catalogue's answer to an error."""
    await _send(context, describe(error), error)


async def answer_errors(
    context: Context, metrics: RefusalMetrics, answer: Callable[[], Awaitable[T]]
) -> T:
    """Run a handler's body; count and answer whatever it refuses."""
    try:
        return await answer()
    except grpc.aio.AbortError:
        raise
    except Exception as error:  # noqa: BLE001 - the process's border: whatever a handler raises is answered
        described = describe(error)
        metrics.count_refusal(described.reason.value)
        await _send(context, described, error)


async def _send(context: Context, answer: Answer, error: Exception) -> NoReturn:
    if not answer.public:
        log.error("internal_error", kind=type(error).__name__, exc_info=error)
    await context.abort(
        answer.code,
        answer.text,
        (
            *this_version().words,
            ("chorale-reason", answer.reason.value),
            ("chorale-hint", answer.hint),
        ),
    )
