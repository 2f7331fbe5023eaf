"""Tools that a model calls by text: what they are called with, checked against their annotations.

A call is one JSON object with the two keys ``name`` and ``arguments``, as models with Hermes' or
Qwen's chat format write it, alone or between ``<tool_call>`` and ``</tool_call>``::

    <tool_call>{"name": "guess", "arguments": {"word": "crane"}}</tool_call>

Invariants:

1. A text is a call, an answer that calls nothing, or neither (``MalformedCallError``): a text that
   opens a call and does not finish it, or has two of them, is never taken for an answer.
2. Text becomes values by JSON alone; a text of more than ``MAX_CALL_CHARS`` characters is not read.
3. A tool is called only with arguments that its annotations allow, unchanged: nothing is coerced,
   but an integer is a float as well. An argument that it does not have is refused.
4. Nothing of the caller's text is part of what is answered about it.

Covered: functions with annotated parameters that are given by name. Not covered: two calls in a
turn; positional-only parameters, ``*args`` and ``**kwargs``; other forms of a call.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NotRequired, Required, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

# Not typing's: pydantic asks for this one before Python 3.12.
from typing_extensions import TypedDict

from evolution.errors import EnvironmentSetupError

__all__ = ["MAX_CALL_CHARS", "MalformedCallError", "Tool", "ToolCall", "call_of", "example_of"]

MAX_CALL_CHARS: Final = 8_000
_MAX_DOC_CHARS: Final = 1_500
_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_STRICT: Final = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """What a text asks for."""

    name: str
    """Of a tool, or of none."""
    arguments: str
    """JSON of an object."""


class MalformedCallError(Exception):
    """A text that is neither a call nor an answer; says what is wrong, in words of ours."""


class Tool:
    """One function; see the module."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """Read its signature.

        Raises:
            EnvironmentSetupError: It cannot be called by a text.
        """
        self.name = name
        self._function = function
        self._said = inspect.getdoc(function) or ""
        if not self._said:
            raise EnvironmentSetupError(f"the tool {name} has no docstring, which the agent reads")
        try:
            hints = get_type_hints(function)
            self._parameters = tuple(inspect.signature(function).parameters.values())
        except (NameError, TypeError, ValueError) as error:
            raise EnvironmentSetupError(f"the tool {name}: {error}") from error
        fields = {}
        for parameter in self._parameters:
            if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
                raise EnvironmentSetupError(f"the tool {name}: {parameter} cannot be given by name")
            if parameter.name not in hints:
                raise EnvironmentSetupError(f"the tool {name}: {parameter.name} has no annotation")
            hint = hints[parameter.name]
            given = parameter.default is parameter.empty
            fields[parameter.name] = Required[hint] if given else NotRequired[hint]
        self._hints = hints
        # mypy knows literal tables only, and these fields are known when a class is.
        typed: Any = TypedDict
        table = typed("Arguments", fields)
        table.__pydantic_config__ = _STRICT
        try:
            self._arguments = TypeAdapter(table)
        except PydanticUserError as error:
            raise EnvironmentSetupError(
                f"the tool {name} has a parameter of a type that JSON cannot be checked against"
            ) from error

    @property
    def signature(self) -> str:
        """As it stands in the instruction: ``guess(word: str)``."""
        shown = []
        for parameter in self._parameters:
            text = f"{parameter.name}: {inspect.formatannotation(self._hints[parameter.name])}"
            if parameter.default is not parameter.empty:
                text += f" = {parameter.default!r}"
            shown.append(text)
        return f"{self.name}({', '.join(shown)})"

    @property
    def described(self) -> str:
        """Signature and docstring."""
        lines = self._said[:_MAX_DOC_CHARS].splitlines()
        return "\n".join([self.signature, *(f"    {line}".rstrip() for line in lines)])

    @property
    def required(self) -> tuple[str, ...]:
        """Parameters without a default."""
        return tuple(one.name for one in self._parameters if one.default is one.empty)

    def arguments_of(self, text: str) -> Mapping[str, Any] | None:
        """The arguments of a call, or None where they do not fit."""
        try:
            found: Mapping[str, Any] = self._arguments.validate_json(text)
        except (ValidationError, RecursionError):
            return None
        return found

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function."""
        return self._function(**arguments)


def call_of(text: str) -> ToolCall | None:
    """The call that a text makes; None where it calls nothing.

    Raises:
        MalformedCallError: It is neither.
    """
    opened = text.count(_OPEN)
    if opened == 0 and not text.lstrip().startswith("{"):
        return None
    if len(text) > MAX_CALL_CHARS:
        raise MalformedCallError(f"A call has at most {MAX_CALL_CHARS} characters.")
    body = text
    if opened:
        body, closed, after = text.partition(_OPEN)[2].partition(_CLOSE)
        if not closed or after.strip():
            raise MalformedCallError(
                f"A call ends with {_CLOSE}, and nothing comes after it. Call one tool at a time."
            )
    try:
        value = json.loads(body, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError("That is no JSON object.") from error
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        raise MalformedCallError("A call has the keys name and arguments, and no others.")
    if not isinstance(value["name"], str) or not isinstance(value["arguments"], dict):
        raise MalformedCallError("The name is a text, and the arguments are an object.")
    return ToolCall(name=value["name"], arguments=json.dumps(value["arguments"]))


def example_of(tool: Tool) -> str:
    """A call of a tool, to show the form."""
    return json.dumps(
        {"name": tool.name, "arguments": dict.fromkeys(tool.required, "…")}, ensure_ascii=False
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
