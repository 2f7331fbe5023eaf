"""``trl:``, a class for TRL's ``environment_factory``, in this process; TRL is not needed.

What TRL 1.16 asks of such a class (``GRPOTrainer``): it is made without arguments; ``reset`` takes
a dataset row by keywords and returns None or a text; every other public method is a tool with
annotated parameters and a docstring; ``get_reward``, where it is there, is no tool, takes nothing
and returns the reward of the episode. Here the same class is played by text. Invariants:

1. The tools are the functions of the class that do not begin with an underscore, but ``reset`` and
   whatever gives the reward; their signatures and docstrings stand in the instruction.
2. A turn is one call (``tool_calls.py``). A turn that calls nothing ends the episode, as TRL ends
   it; so does an attribute ``done``, where the operator names one.
3. What a tool returns is the observation, ``str`` of it as in TRL; an exception of a tool is shown
   as TRL shows it, for classes tell the agent so that a game is over.
4. A call that cannot be read, of no tool or with other arguments costs a step and is invalid.
5. The reward is read once, when the episode ends here or at ``max_steps``, and is that step's.

Covered: functions, objects that are reset again and again, text results. Not covered: ``async``
tools, images, several environments in one table; rows of a dataset (``reset`` is given the task's
number and constants); a class that ignores the number, whose tasks are then other ones each time; a
limit on time or memory, as for ``gym:``.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Final

from evolution.envs.foreign.foreign import Breaker, ForeignEnvironment, Turn
from evolution.envs.foreign.reply import bool_of
from evolution.envs.foreign.spec import TrlSpec
from evolution.envs.foreign.tool_calls import MalformedCallError, Tool, call_of, example_of
from evolution.errors import EnvironmentFailureError, EnvironmentSetupError, ForeignReplyError

__all__ = ["TrlEnvironment"]

_MAX_TOOLS: Final = 32
_MAX_TOOL_CHARS: Final = 16_000
_ENDED: Final = "The episode is over."


class TrlEnvironment(ForeignEnvironment[TrlSpec]):
    """See the module."""

    def __init__(self, spec: TrlSpec, breaker: Breaker) -> None:
        super().__init__(spec, breaker)
        self._object: Any = None
        self._tools: dict[str, Tool] = {}

    @property
    def instruction(self) -> str:
        """The operator's, the tools, and how they are called."""
        self._require_object()
        tools = "\n\n".join(tool.described for tool in self._tools.values())
        example = example_of(next(iter(self._tools.values())))
        return (
            f"{self._spec.instruction}\n\nTools:\n\n{tools}\n\n"
            f"To call a tool, answer with one JSON object and nothing else, for example:\n{example}"
            "\nAn answer without a call ends the task."
        )

    def _begin(self, index: int) -> Turn:
        self._require_object()
        row = {**self._spec.reset, self._spec.task_key: index}
        try:
            inspect.signature(self._object.reset).bind(**row)
        except (TypeError, ValueError) as error:
            raise EnvironmentSetupError(
                f"{self.name}: reset does not take {', '.join(row)} ({error}); say task_key and "
                "reset in the table"
            ) from error
        told = _run(self._object.reset, **row)
        return Turn(observation="" if told is None else _text(told))

    def _act(self, action: str | int) -> Turn:
        try:
            call = call_of(str(action))
        except MalformedCallError as error:
            return self._turn(str(error), ours=True)
        if call is None:
            return self._turn(_ENDED, ours=False, over=True)
        tool = self._tools.get(call.name)
        if tool is None:
            return self._turn(f"There is no such tool. Tools: {', '.join(self._tools)}.", ours=True)
        arguments = tool.arguments_of(call.arguments)
        if arguments is None:
            return self._turn(f"Those arguments do not fit {tool.signature}.", ours=True)
        try:
            result = tool(arguments)
        except Exception as error:  # noqa: BLE001  # what a tool raises is for the agent: see TRL
            result = {"error": str(error)}
        return self._turn(_text(result), ours=False)

    def _end(self) -> None:
        # The class has no method that would close it.
        self._object = None

    def _turn(self, told: str, *, ours: bool, over: bool = False) -> Turn:
        done = self._spec.done
        if done is not None:
            over = over or bool_of(_run(getattr, self._object, done), done)
        last = over or self._steps >= self.max_steps
        reward = self._reward() if last else 0.0
        return Turn(observation=told, reward=reward, terminated=over, ours=ours)

    def _reward(self) -> Any:
        found = _run(getattr, self._object, self._spec.reward)
        return _run(found) if callable(found) else found

    def _require_object(self) -> None:
        if self._object is None:
            made = _make(self._spec)
            self._tools = _tools(self._spec, made)
            self._object = made


def _make(spec: TrlSpec) -> Any:
    module, _, attribute = spec.entry_point.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)(**spec.options)
    except ModuleNotFoundError as error:
        raise EnvironmentSetupError(
            f"{spec.name}: {error}: install the package that has it into the daemon's environment"
        ) from error
    except Exception as error:
        raise EnvironmentSetupError(f"{spec.name} cannot be made: {error}") from error
    if not callable(getattr(made, "reset", None)):
        raise EnvironmentSetupError(f"{spec.name}: {attribute} has no method reset")
    if spec.reward == "get_reward" and not callable(getattr(made, "get_reward", None)):
        raise EnvironmentSetupError(
            f"{spec.name}: {attribute} has no method get_reward: name another one or an attribute "
            'in the table, for example reward = "reward"'
        )
    return made


def _tools(spec: TrlSpec, made: Any) -> dict[str, Tool]:
    """The same functions as TRL takes: of the class, so that no property is evaluated."""
    reserved = {"reset", "get_reward", spec.reward, spec.done}
    tools = {}
    for name, function in inspect.getmembers(type(made), predicate=inspect.isfunction):
        if name in reserved or name.startswith("_"):
            continue
        if inspect.iscoroutinefunction(function):
            raise EnvironmentSetupError(f"{spec.name}: the tool {name} is async, which is not used")
        tools[name] = Tool(getattr(made, name), name)
    if not 1 <= len(tools) <= _MAX_TOOLS:
        raise EnvironmentSetupError(
            f"{spec.name}: {len(tools)} tools; there may be 1 to {_MAX_TOOLS}"
        )
    if sum(len(tool.described) for tool in tools.values()) > _MAX_TOOL_CHARS:
        raise EnvironmentSetupError(
            f"{spec.name}: the tools' docstrings have more than {_MAX_TOOL_CHARS} characters"
        )
    return tools


def _text(result: Any) -> str:
    """What the agent sees of a result: text blocks joined, anything else as ``str``."""
    if isinstance(result, str):
        return result
    if isinstance(result, list) and any(isinstance(part, dict) for part in result):
        parts = [part.get("text") if isinstance(part, dict) else None for part in result]
        if not all(isinstance(part, str) for part in parts):
            raise ForeignReplyError("a result is neither text nor a list of text blocks")
        return "\n".join(map(str, parts))
    return str(_run(str, result))


def _run(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Call foreign code."""
    try:
        return call(*args, **kwargs)
    except EnvironmentFailureError:
        raise
    except Exception as error:
        raise ForeignReplyError(f"the environment raised {type(error).__name__}") from error
