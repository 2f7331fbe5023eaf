"""Reading what a harness sends: chat completion requests, and its report. All of it is hostile.

A request is taken whole or refused, with OpenAI's error layout: nothing that would change an answer
is ignored in silence. Invariants:

1. A body is one JSON object of bounded size and depth, without NaN or infinities; texts are such
   that UTF-8 can hold them.
2. A key that is not known is refused. One that is known and that this gateway cannot honour (n,
   top_p, penalties, logit_bias, stop, seed, …) is taken with its neutral value and refused with any
   other. Labels (user, metadata, …) change no answer and are ignored.
3. A temperature is the one that the plan samples with, or left out: the log-probabilities that are
   recorded are those of that temperature.
4. ``max_tokens`` may shorten an answer and never lengthen it: beyond the plan's own bound an answer
   is cut off, and says so (``finish_reason`` "length").
5. A report is a finite reward within the operator's range and, where it is said, whether the task
   was solved. It does not contradict the operator's rule.

Covered: chat completions with text, tools and streaming. Not covered: images and sound, structured
output, ``tool_choice`` that forces a call, log-probabilities in the answer, the Responses API.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NoReturn

from evolution.envs.foreign.spec import REPORTED, HarnessSpec
from evolution.errors import HarnessReportError, RequestRefusedError

__all__ = [
    "Call",
    "ChatRequest",
    "Message",
    "Report",
    "canonical_arguments",
    "json_of",
    "object_of",
    "read_report",
    "read_request",
]

MAX_MESSAGES: Final = 4_096
MAX_TOOLS: Final = 128
MAX_DEPTH: Final = 64
_ROLES: Final = MappingProxyType(
    {
        "assistant": "assistant",
        "developer": "system",
        "system": "system",
        "tool": "tool",
        "user": "user",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of a tool."""

    name: str
    """Which."""
    arguments: str
    """As JSON text, with sorted keys where it is JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message, as far as it is rendered and compared; ids of calls are neither."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    text: str
    """Its content, as it came."""
    calls: tuple[Call, ...] = ()
    """Of an assistant's message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """A request that can be answered."""

    model: str
    """The model that it asks for."""
    messages: tuple[Message, ...]
    """At least one."""
    tools: tuple[Mapping[str, Any], ...]
    """As chat completions have them."""
    max_new_tokens: int | None
    """The longest answer that the harness wants."""
    stream: bool
    """Answer by server-sent events."""
    usage_in_stream: bool
    """Whether an event with the token counts ends the stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a harness says its task came to."""

    reward: float
    """Within the operator's range."""
    success: bool
    """By the operator's rule."""


def object_of(body: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        RequestRefusedError: It is none, or holds NaN, an infinity or a lone surrogate.
    """
    try:
        found = json_of(body.decode("utf-8"))
        # A lone surrogate, which JSON can carry, would break the tokenizer and the memory.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise _refused(
            "invalid_json", "the body is no JSON in UTF-8 with finite numbers"
        ) from error
    if not isinstance(found, dict) or _deeper(found, MAX_DEPTH):
        raise _refused("invalid_json", f"the body is no JSON object of at most {MAX_DEPTH} levels")
    return found


def read_request(body: dict[str, Any], *, temperature: float) -> ChatRequest:
    """The request in a body; ``temperature`` is the one that is sampled with.

    Raises:
        RequestRefusedError: It cannot be answered as it is.
    """
    for key, value in body.items():
        if value is None:
            # Clients write null for what they leave out.
            continue
        check = _KNOWN.get(key)
        if check is None:
            raise _refused("unknown_parameter", f"the gateway does not know {key[:64]!r}", key[:64])
        if not check(value):
            raise _refused(
                "unsupported_value", f"{key!r} has a value that the gateway cannot honour", key
            )
    asked = body.get("temperature")
    if asked is not None and asked != temperature:
        raise _refused(
            "unsupported_value",
            f"the plan samples at temperature {temperature:g}: leave temperature out",
            "temperature",
        )
    model, messages, tools = body.get("model"), body.get("messages"), body.get("tools") or ()
    if not isinstance(model, str):
        raise _refused("missing_parameter", "model is missing: OPENAI_MODEL names it", "model")
    if not messages:
        raise _refused("missing_parameter", "there are no messages", "messages")
    limits = [body[key] for key in ("max_tokens", "max_completion_tokens") if body.get(key)]
    stream_options = body.get("stream_options") or {}
    return ChatRequest(
        model=model,
        messages=tuple(map(_message, messages)),
        tools=tuple(map(_tool, tools)),
        max_new_tokens=min(limits) if limits else None,
        stream=bool(body.get("stream")),
        usage_in_stream=bool(stream_options.get("include_usage")),
    )


def read_report(body: dict[str, Any], spec: HarnessSpec) -> Report:
    """The report in a body, or in the last line of what a harness wrote.

    Raises:
        HarnessReportError: It is not of the form, out of range, or contradicts the rule.
    """
    reward: Any = body.get("reward")
    said = body.get(REPORTED)
    if body.keys() - {"reward", REPORTED} or not _is_number(reward):
        raise HarnessReportError("a report is an object with a reward and nothing but success")
    if said is not None and not isinstance(said, bool):
        raise HarnessReportError("success of a report is not a bool")
    least, greatest = spec.reward_range
    if not least <= reward <= greatest:
        raise HarnessReportError("the reward lies outside reward_range")
    threshold = spec.success.reward_at_least
    if threshold is None:
        if said is None:
            raise HarnessReportError("the report does not say success, which silo.toml asks for")
        return Report(reward=float(reward), success=said)
    solved = bool(reward >= threshold)
    if said is not None and said != solved:
        raise HarnessReportError("the report says one thing with success and another with reward")
    return Report(reward=float(reward), success=solved)


def json_of(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: It is none, or holds NaN or an infinity.
        RecursionError: It is too deep.
    """
    return json.loads(text, parse_constant=_no_number)


def canonical_arguments(text: str) -> str:
    """Arguments of a call such that equal ones are equal texts, however they were written."""
    try:
        found = json_of(text)
        return json.dumps(found, sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _message(value: object) -> Message:
    if not isinstance(value, dict):
        raise _bad_message("a message is not an object")
    role = _ROLES.get(str(value.get("role")))
    if role is None:
        raise _bad_message(f"roles are {', '.join(_ROLES)}")
    known = {"role", "content", *_EMPTY_IN_MESSAGES}
    known |= {"tool_calls"} if role == "assistant" else set()
    known |= {"tool_call_id", "name"} if role == "tool" else set()
    for key in value:
        if key not in known:
            raise _bad_message(f"the gateway does not know {key[:64]!r} in a message of {role}")
        if key in _EMPTY_IN_MESSAGES and value[key]:
            raise _bad_message(f"{key!r} has a value that the gateway cannot honour")
    calls = value.get("tool_calls") or ()
    if not isinstance(calls, list | tuple) or len(calls) > MAX_TOOLS:
        raise _bad_message("tool_calls is no list")
    return Message(role=role, text=_text(value.get("content")), calls=tuple(map(_call, calls)))


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad_message("content is neither text nor a list of texts")
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise _bad_message("content holds something else than text")
        parts.append(text)
    return "\n".join(parts)


def _call(value: object) -> Call:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        raise _bad_message("a tool call has no function")
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise _bad_message("a tool call has no name, or arguments that are no text")
    return Call(name=name, arguments=canonical_arguments(arguments))


def _tool(value: object) -> Mapping[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if (
        not isinstance(value, dict)
        or value.get("type") != "function"
        or not isinstance(function, dict)
        or not isinstance(function.get("name"), str)
    ):
        raise _refused("unsupported_value", "a tool is not a named function", "tools")
    return value


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(one, levels - 1) for one in inside)


def _equals(*neutral: object) -> Callable[[Any], bool]:
    """True and 1 are told apart."""

    def check(value: Any) -> bool:
        return any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral
        )

    return check


def _empty(value: Any) -> bool:
    return value in ([], {}, "")


def _list(most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) <= most


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _label(value: Any) -> bool:  # noqa: ARG001  # whatever it says, no answer depends on it
    return True


def _bool(value: Any) -> bool:
    return isinstance(value, bool)


_KNOWN: Final[Mapping[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "frequency_penalty": _equals(0),
        "logit_bias": _empty,
        "logprobs": _equals(False),
        "max_completion_tokens": _count,
        "max_tokens": _count,
        "messages": _list(MAX_MESSAGES),
        "metadata": _label,
        "model": lambda value: isinstance(value, str),
        "n": _equals(1),
        "parallel_tool_calls": _equals(True),
        "presence_penalty": _equals(0),
        "prompt_cache_key": _label,
        "response_format": _equals({"type": "text"}),
        "safety_identifier": _label,
        "service_tier": _equals("auto", "default"),
        "stop": _empty,
        "store": _equals(False),
        "stream": _bool,
        "stream_options": lambda value: (
            isinstance(value, dict)
            and value.keys() <= {"include_usage"}
            and all(map(_bool, value.values()))
        ),
        "temperature": _is_number,
        "tool_choice": _equals("auto"),
        "tools": _list(MAX_TOOLS),
        "top_logprobs": _equals(0),
        "top_p": _equals(1),
        "user": _label,
    }
)
"""What a body may hold, and which values; null is the default of each."""
_EMPTY_IN_MESSAGES: Final = frozenset(
    {"annotations", "audio", "function_call", "reasoning_content", "refusal"}
)
"""What clients send back of an answer that never had any."""


def _refused(code: str, message: str, param: str | None = None) -> RequestRefusedError:
    return RequestRefusedError(400, code, message, param=param)


def _bad_message(message: str) -> RequestRefusedError:
    return _refused("unsupported_value", message, "messages")


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
