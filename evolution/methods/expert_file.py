r"""Demonstrations that an operator has in a file: JSON Lines in AgentGym's form.

One episode a line (WooooDyy/AgentGym, ``examples/agentevol``)::

    {"conversations": [{"from": "human", "loss": null, "value": "You are …"},
                       {"from": "gpt", "loss": false, "value": "OK. …"},
                       {"from": "human", "loss": null, "value": "Goal: …"},
                       {"from": "gpt", "loss": true, "value": "Thought: …\nAction: get 1 log"}],
     "item_id": "textcraft_6"}

The first human message is the instruction. The first reply, with ``loss`` false, only acknowledges
it: ``ChatFormat`` says an instruction once and asks for no answer, so that turn is left out. A
conversation whose first reply is trained on has its instruction and its first observation in one
message. Later replies with ``loss`` false or null are context without loss. ``subject``, beside
``item_id``, is optional and says whose data the task is made of.

The number behind the last underscore of ``item_id`` is the task; the name before it must be the
same on every line, because a file is imported as tasks of one environment.

Invariants:

1. Every line is a success because its owner says so; nothing here plays it again.
2. No text can open or close a turn, or grow without bound: ``ChatFormat`` cleans it. A *reply* that
   it would have to shorten is refused, for its end would never be learned.
3. One bad line refuses the whole file, with the number of the line. Nothing is imported then.

Covered: files from anywhere. Not covered: conversations of several agents, images, tool messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeGuard

from evolution.errors import ExpertFileError
from evolution.methods.expert import EXPERT_ROUND
from evolution.rollout.conversation import MAX_OBSERVATION_CHARS, ChatFormat
from evolution.trajectory import Step, Task, Trajectory

__all__ = ["read_expert_file"]

MAX_LINE_BYTES: Final = 1 << 20
MAX_LINES: Final = 20_000
MAX_TURNS: Final = 400
MAX_SUBJECT_CHARS: Final = 200
_ITEM = re.compile(r"(?P<name>[\w.:/-]{1,100})_(?P<number>\d{1,15})", re.ASCII)
_KEYS = frozenset({"conversations", "item_id", "subject"})
_TURN_KEYS = frozenset({"from", "loss", "value"})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Turn:
    """One message."""

    agent: bool
    trained: bool
    text: str


def read_expert_file(path: Path, *, environment: str, chat: ChatFormat) -> list[Trajectory]:
    """Read demonstrations of one environment, in the order of the lines.

    Raises:
        ExpertFileError: The file cannot be read, or a line is not of the form; nothing is returned.
    """
    found: list[Trajectory] = []
    name = ""
    for number, line in _lines(path):
        try:
            name, trajectory = _read(line, environment, chat, name)
        except ExpertFileError as error:
            raise ExpertFileError(f"{path}:{number}: {error}") from error
        found.append(trajectory)
    return found


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise ExpertFileError(f"{path}:{number}: longer than {MAX_LINE_BYTES} bytes")
                if number > MAX_LINES:
                    raise ExpertFileError(f"{path}: more than {MAX_LINES} lines")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ExpertFileError(f"{path} cannot be read: {error}") from error


def _read(
    line: bytes, environment: str, chat: ChatFormat, known_name: str
) -> tuple[str, Trajectory]:
    """The name in a line's ``item_id``, which must be the known one, and its trajectory."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ExpertFileError("not a line of JSON") from error
    if not isinstance(entry, dict) or not entry.keys() >= {"conversations", "item_id"}:
        raise ExpertFileError("not an object with conversations and item_id")
    if unknown := entry.keys() - _KEYS:
        raise ExpertFileError(f"unknown key {min(unknown)[:40]!r}")
    item = _ITEM.fullmatch(entry["item_id"]) if isinstance(entry["item_id"], str) else None
    if item is None:
        raise ExpertFileError("item_id is not a name, an underscore and a number")
    if known_name and item["name"] != known_name:
        raise ExpertFileError(f"item_id is of {item['name']!r}, and those before of {known_name!r}")
    subject = entry.get("subject", "")
    if not _is_text(subject) or len(subject) > MAX_SUBJECT_CHARS:
        raise ExpertFileError(f"subject is not a text of at most {MAX_SUBJECT_CHARS} characters")
    steps, final = _steps(_turns(entry["conversations"]), chat)
    return item["name"], Trajectory(
        task=Task(environment=environment, task_id=int(item["number"]), subject=subject),
        steps=tuple(steps),
        final_observation=final,
        success=True,
        adapter_sha256="",
        round=EXPERT_ROUND,
    )


def _turns(conversations: Any) -> list[_Turn]:
    if not isinstance(conversations, list) or not 2 <= len(conversations) <= MAX_TURNS:
        raise ExpertFileError(f"conversations is not a list of 2 to {MAX_TURNS} messages")
    turns = [_turn(message) for message in conversations]
    if turns[0].agent or any(one.agent == other.agent for one, other in pairwise(turns)):
        raise ExpertFileError("messages do not alternate between human and gpt, human first")
    return turns


def _turn(message: Any) -> _Turn:
    if not isinstance(message, dict) or message.keys() != _TURN_KEYS:
        raise ExpertFileError("a message has from, loss and value, and nothing else")
    author, loss, text = message["from"], message["loss"], message["value"]
    if not (isinstance(author, str) and author in {"human", "gpt"} and _is_text(text)):
        raise ExpertFileError("a message is a text from human or gpt")
    if loss is not None and not isinstance(loss, bool):
        raise ExpertFileError("loss is null, true or false")
    agent = author == "gpt"
    if loss and not agent:
        raise ExpertFileError("a human message is not trained on")
    return _Turn(agent=agent, trained=bool(loss), text=text)


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether this is text that UTF-8 has a form for; JSON can write half of a character."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _steps(turns: list[_Turn], chat: ChatFormat) -> tuple[list[Step], str]:
    """The steps of a conversation, and what the environment said last."""
    acknowledged = not turns[1].trained
    if acknowledged and len(turns) < 4:
        raise ExpertFileError("nothing in it is trained on")
    instruction = turns[0].text if acknowledged else ""
    first, *later = turns[2:] if acknowledged else turns
    context = chat.opening(instruction, first.text)
    observation, steps = first.text, list[Step]()
    for turn in later:
        if not turn.agent:
            observation = turn.text
            context += chat.next_turn(turn.text)
            continue
        answer = _answer(turn.text, chat)
        if not turn.trained:
            context += answer
            continue
        steps.append(
            Step(
                observation=chat.clean(observation),
                action=chat.parse_action(answer),
                context_ids=tuple(context),
                action_ids=tuple(answer),
                action_logprobs=(0.0,) * len(answer),
            )
        )
        context = []
    if not steps:
        raise ExpertFileError("nothing in it is trained on")
    return steps, "" if turns[-1].agent else chat.clean(turns[-1].text)


def _answer(text: str, chat: ChatFormat) -> list[int]:
    if len(text) > MAX_OBSERVATION_CHARS:
        raise ExpertFileError(f"a reply is longer than {MAX_OBSERVATION_CHARS} characters")
    if not chat.clean(text):
        raise ExpertFileError("a reply is empty")
    return chat.answer(text)
