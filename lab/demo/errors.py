"""What the demo ends with when it cannot go on."""

from __future__ import annotations

__all__ = ["DemoError", "NotJudgedError"]


class DemoError(Exception):
    """The demo could not go on; the message says where to look."""


class NotJudgedError(DemoError):
    """A silo did not judge an adapter in time."""
