"""What an endpoint sent back: the parts of a chat completion that count, and nothing else.

Ordered checks: size, nesting and JSON (``strict_json``); an object with exactly one choice; its
message; tool calls, or else a content. Everything else in it is passed over: endpoints add fields
of their own.

Covered: bodies of any bytes. Not covered: what content and calls say (``proposal``, ``tools``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from federation.advice.strict_json import JsonFaultError, read_json

__all__ = ["MAX_BODY_BYTES", "Reply", "WrittenCall", "read_reply"]

MAX_BODY_BYTES: Final = 256 << 10
MAX_BODY_DEPTH: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenCall:
    """A tool call as the model wrote it, which may be none."""

    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A completion."""

    content: str
    """Empty where there is none."""
    calls: tuple[WrittenCall, ...]
    tokens: int | None
    """Prompt and answer together, as the endpoint counts them; None where it says no integer."""


def read_reply(body: bytes) -> Reply | None:
    """The completion in a body; None where there is none."""
    try:
        said = read_json(body, max_bytes=MAX_BODY_BYTES, max_depth=MAX_BODY_DEPTH)
    except JsonFaultError:
        return None
    choices = said.get("choices") if isinstance(said, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    message = choices[0].get("message")
    if not isinstance(message, dict):
        return None
    content = message.get("content")
    written = message.get("tool_calls")
    calls = _calls([] if written is None else written)
    if calls is None or not (content is None or isinstance(content, str)):
        return None
    return Reply(content=(content or "").strip(), calls=calls, tokens=_tokens(said.get("usage")))


def _calls(written: object) -> tuple[WrittenCall, ...] | None:
    if not isinstance(written, list):
        return None
    calls: list[WrittenCall] = []
    for call in written:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return None
        name, arguments = function.get("name"), function.get("arguments", "")
        if not isinstance(name, str) or not isinstance(arguments, str):
            return None
        calls.append(WrittenCall(name=name, arguments=arguments))
    return tuple(calls)


def _tokens(usage: Any) -> int | None:
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if type(total) is int else None
