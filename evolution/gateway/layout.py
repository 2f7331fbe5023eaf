"""How a harness's messages become tokens, and how an answer becomes a message.

The model's own chat template lays messages out. It is given marker texts in the place of contents
and its text is split at them, so that no content can pass for a part of the layout and none is lost
in silence. Invariants:

1. What was said is never rendered again: a first request is rendered whole (``opening``), and of a
   later one only what follows the recorded answer (``following``).
2. Contents are cleaned of whatever the tokenizer would read as a special token, and stripped. They
   are not cut.
3. A template that drops a message, moves one, or takes no such order of roles is a refusal.

Tools go through the template where it knows both ``tools`` and the role ``tool``. Otherwise, and
for calls in a history that the model did not write itself, the layout is plain:

- the system message ends with ``PLAIN_TOOLS`` and one JSON object for each tool, a line each;
- a call is ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` in the assistant's text;
- a tool's result is a user message, ``<tool_response>`` around its text.

Whichever laid them out, calls are read in that form, or as a lone JSON object with ``name`` and
``arguments`` or ``parameters``. What looks like a call and is none stays text, and the step counts
as invalid.

Covered: every template that ``ChatFormat`` takes, with a system role or without. Not covered: tool
calls in other forms, which stay text; what a template writes of its own (a date, a default system
prompt), which is context like everything that the model did not say.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evolution.errors import ChatTemplateError, ConversationError, RequestRefusedError
from evolution.gateway.request import Call, Message, canonical_arguments, json_of
from evolution.rollout.conversation import ChatFormat

__all__ = ["PLAIN_TOOLS", "Layout", "Reading"]

PLAIN_TOOLS: Final = (
    'To call a tool, answer with <tool_call>{"name": "…", "arguments": {…}}</tool_call>. The tools:'
)
_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_PROBE: Final = "choraleprobe"
_PROBED: Final = {
    "type": "function",
    "function": {
        "name": _PROBE,
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """An answer as a message."""

    message: Message
    """What the harness is sent, and is expected to send back."""
    invalid: bool
    """It holds what looks like a call and is none."""


class Layout:
    """The layout of one model's conversations with harnesses."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        # Sessions are answered on threads of their own, and a tokenizer is nobody's at once.
        self._one_at_a_time = threading.Lock()
        system = Message(role="system", text="")
        user = Message(role="user", text="")
        self._system_role = self._takes([system, user])
        self._tool_role = self._takes(
            [user, Message(role="assistant", text=""), Message(role="tool", text="")]
        )
        self.native_tools = self._tool_role and self._names_tools()
        """Whether the template itself lays tools out."""

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a whole conversation, up to the header of the agent's answer.

        Raises:
            RequestRefusedError: The template does not take it.
        """
        plain = self._plain(messages)
        native = [self._cleaned(tool) for tool in tools] if self.native_tools else []
        if tools and not self.native_tools:
            lines = [json.dumps(self._cleaned(t)["function"], ensure_ascii=False) for t in tools]
            plain = _with_system(plain, "\n".join([PLAIN_TOOLS, *lines]))
        if not self._system_role:
            plain = _without_system(plain)
        text = self._text(plain, native)
        with self._one_at_a_time:
            return self._chat.encode(text)

    def following(self, messages: Sequence[Message]) -> list[int]:
        """Token ids between the end of a recorded answer and the header of the next one.

        Raises:
            RequestRefusedError: The template does not take such messages there.
        """
        before = [Message(role="user", text="")]
        if self._system_role:
            before.insert(0, Message(role="system", text=""))
        chat = [*before, Message(role="assistant", text=""), *self._plain(messages)]
        after = self._text(chat, (), skip=len(before) + 1).lstrip()
        if not after.startswith(self._chat.end_marker):
            raise _untakeable()
        with self._one_at_a_time:
            return self._chat.encode(after.removeprefix(self._chat.end_marker))

    def read(self, token_ids: Sequence[int], *, tools: bool) -> Reading:
        """The message in what the model generated; calls are looked for where there are tools."""
        with self._one_at_a_time:
            text = self._chat.text_of(token_ids)
        if not tools:
            return Reading(message=Message(role="assistant", text=text), invalid=False)
        found = _CALL.findall(text)
        calls = [_call_of(one) for one in found] if found else [_call_of(text)]
        if None in calls:
            invalid = bool(found) or "<tool_call>" in text
            return Reading(message=Message(role="assistant", text=text), invalid=invalid)
        rest = _CALL.sub("", text).strip() if found else ""
        made = tuple(call for call in calls if call is not None)
        return Reading(message=Message(role="assistant", text=rest, calls=made), invalid=False)

    def same(self, one: Message, other: Message) -> bool:
        """Whether two messages are one and the same to the model."""
        return (
            one.role == other.role
            and one.calls == other.calls
            and (one.text == other.text or self._clean(one.text) == self._clean(other.text))
        )

    def _plain(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with calls, and where need be results, as text; texts are cleaned."""
        return [self._plainly(message) for message in messages]

    def _plainly(self, message: Message) -> Message:
        text = self._clean(message.text)
        if message.calls:
            calls = [
                f'<tool_call>{{"name": {json.dumps(call.name, ensure_ascii=False)}, '
                f'"arguments": {call.arguments}}}</tool_call>'
                for call in message.calls
            ]
            text = self._clean("\n".join([text, *calls]))
        if message.role == "tool" and not self.native_tools:
            return Message(role="user", text=f"<tool_response>\n{text}\n</tool_response>")
        return Message(role=message.role, text=text)

    def _text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, skip: int = 0
    ) -> str:
        """What the template makes of the messages, from the end of the first ``skip`` on."""
        markers = [f"chorale{place}marker" for place in range(len(messages))]
        chat = [
            {"role": message.role, "content": marker}
            for message, marker in zip(messages, markers, strict=True)
        ]
        try:
            text = self._chat.rendered(chat, tools=tools)
        except ChatTemplateError as error:
            raise _untakeable() from error
        parts = re.split(r"(chorale\d+marker)", text)
        if parts[1::2] != markers:
            raise _untakeable()
        between = parts[::2]
        texts = [message.text for message in messages]
        said = "".join(
            text + after for text, after in zip(texts[skip:], between[skip + 1 :], strict=True)
        )
        return between[skip] + said

    def _takes(self, messages: Sequence[Message]) -> bool:
        try:
            self._text(messages, ())
        except RequestRefusedError:
            return False
        return True

    def _names_tools(self) -> bool:
        try:
            text = self._chat.rendered([{"role": "user", "content": "x"}], tools=[_PROBED])
        except ChatTemplateError:
            return False
        return _PROBE in text

    def _cleaned(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._clean(value)
        if isinstance(value, Mapping):
            return {self._clean(str(key)): self._cleaned(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._cleaned(item) for item in value]
        return value

    def _clean(self, text: str) -> str:
        try:
            return self._chat.unmarked(text)
        except ConversationError as error:
            raise RequestRefusedError(
                400, "unsupported_value", "chat markers stand in one another", param="messages"
            ) from error


def _with_system(messages: Sequence[Message], text: str) -> list[Message]:
    if messages and messages[0].role == "system":
        told = f"{messages[0].text}\n\n{text}"
        return [Message(role="system", text=told), *messages[1:]]
    return [Message(role="system", text=text), *messages]


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """The first system message leads the first user message, as in every episode."""
    if len(messages) > 1 and (messages[0].role, messages[1].role) == ("system", "user"):
        told = f"{messages[0].text}\n\n{messages[1].text}"
        return [Message(role="user", text=told), *messages[2:]]
    if messages and messages[0].role == "system":
        return [Message(role="user", text=messages[0].text), *messages[1:]]
    return list(messages)


def _call_of(text: str) -> Call | None:
    try:
        found = json_of(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters"))
    if isinstance(arguments, str):
        return Call(name=found["name"], arguments=canonical_arguments(arguments))
    if not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    return Call(name=found["name"], arguments=canonical_arguments(written))


def _untakeable() -> RequestRefusedError:
    return RequestRefusedError(
        400,
        "unsupported_value",
        "the model's chat template takes no such messages in this order",
        param="messages",
    )
