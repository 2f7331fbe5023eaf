"""What the gateway answers: the bodies of OpenAI's chat completions, whole or as a stream.

An answer is whole before its first byte is sent, so a stream is the same answer in a few events.
Ids name the session's answer by number, and ``created`` is 0: nothing here tells the time.

Covered: completions, streams, models, errors. Not covered: log-probabilities, which are recorded
and not told.
"""

from __future__ import annotations

import json
from typing import Any, Final

from evolution.errors import RequestRefusedError
from evolution.gateway.request import ChatRequest
from evolution.gateway.session import Answer

__all__ = ["completion", "error_body", "model_of", "models", "stream"]

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def completion(answer: Answer, model: str) -> bytes:
    """The body of a chat completion."""
    message = {
        "role": "assistant",
        "content": answer.message.text or (None if answer.message.calls else ""),
        "refusal": None,
        **({"tool_calls": _calls(answer)} if answer.message.calls else {}),
    }
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": answer.finish_reason,
        "logprobs": None,
    }
    return _json(
        {**_head(answer, model, "chat.completion"), "choices": [choice], "usage": _usage(answer)}
    )


def stream(answer: Answer, model: str, request: ChatRequest) -> bytes:
    """The same as server-sent events."""
    calls = [{"index": index, **call} for index, call in enumerate(_calls(answer))]
    deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
    if answer.message.text:
        deltas.append(({"content": answer.message.text}, None))
    if calls:
        deltas.append(({"tool_calls": calls}, None))
    deltas.append(({}, answer.finish_reason))
    head = _head(answer, model, "chat.completion.chunk")
    events = [
        {
            **head,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}],
        }
        for delta, reason in deltas
    ]
    if request.usage_in_stream:
        events.append({**head, "choices": [], "usage": _usage(answer)})
    lines = [*map(_json, events), b"[DONE]"]
    return b"".join(b"data: " + line + b"\n\n" for line in lines)


def models(model: str) -> bytes:
    """The list of the session's one model."""
    return _json({"object": "list", "data": [_model(model)]})


def model_of(model: str) -> bytes:
    """That model alone."""
    return _json(_model(model))


def error_body(error: RequestRefusedError) -> bytes:
    """An error as OpenAI lays it out."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    found = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return _json({"error": found})


def _head(answer: Answer, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.number}", "object": kind, "created": 0, "model": model}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{answer.number}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(answer.message.calls)
    ]


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _model(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "chorale"}


def _json(value: object) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
