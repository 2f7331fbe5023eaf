"""What can go wrong between the rollout engine and the model server beside it.

Errors::

    RolloutError
    ├── AdapterLoadError             the server does not take the adapter
    ├── EngineSetupError             the operator's settings and the server do not fit each other
    └── EngineServerError
        ├── EngineUnreachableError   no connection, a hang-up, or nobody healthy at the other end
        ├── EngineTimeoutError       no whole answer in time
        ├── EngineRefusalError       another HTTP status than 200
        └── EngineReplyError         an answer that cannot be what was asked for

Covered: every failure of ``engine.py``. Not covered: faults of the operator's disk, which stay
``OSError``.
"""

from __future__ import annotations

from evolution.rollout.engine import RolloutError

__all__ = [
    "EngineRefusalError",
    "EngineReplyError",
    "EngineServerError",
    "EngineSetupError",
    "EngineTimeoutError",
    "EngineUnreachableError",
]


class EngineSetupError(RolloutError):
    """The operator's settings and the server do not fit each other."""


class EngineServerError(RolloutError):
    """The server did not do what it was asked for."""


class EngineUnreachableError(EngineServerError):
    """There is no connection, the server hung up, or it says that it is not healthy."""


class EngineTimeoutError(EngineServerError):
    """The whole answer did not come in time."""


class EngineRefusalError(EngineServerError):
    """The server answered with another status than 200."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the model server answered with status {status}: {reason!r}")
        self.status = status


class EngineReplyError(EngineServerError):
    """The answer cannot be what was asked for."""
