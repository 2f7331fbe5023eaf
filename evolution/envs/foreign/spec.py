"""What an operator says about one foreign environment: ``[foreign."kind:alias"]`` of silo.toml.

Invariants:

1. Every table is frozen, strict and closed; every text and number is bounded.
2. A server is reached on loopback or with TLS. The protocols have no authentication and the reward
   is the label that is trained on, so nobody in between may read or change it.
3. Success has no default, but where the package itself says what solved is (``reasoning-gym``,
   ``textworld``). Which figure decides it, and from where on, is the operator's to say.
4. The splits never share a task: seeds come from disjoint ranges, listed tasks may not repeat.
5. What a harness may use, of answers, tokens and seconds, is a number here, and so is the range of
   its reward.

Covered: the kinds ``openenv``, ``agentgym``, ``gym``, ``reasoning-gym``, ``textworld``, ``trl`` and
``harness``. Not covered: reading silo.toml (``silo_agent/config.py``); what a harness's command
does (``evolution/gateway``).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from evolution.envs.tasks import SPLIT_SIZE, Shard, Split, label_index, task_range
from evolution.errors import ShardError, TaskIdError
from ops.address import is_loopback

__all__ = [
    "ACTION",
    "HARNESS",
    "KINDS",
    "REPORTED",
    "AgentGymSpec",
    "ForeignSpec",
    "GymSpec",
    "HarnessSpec",
    "OpenEnvSpec",
    "ReasoningGymSpec",
    "ServerSpec",
    "SuccessRule",
    "TaskTable",
    "TextWorldSpec",
    "TrlSpec",
    "kind_of",
]

ACTION = "{action}"
"""Where the agent's text goes in an action's template."""
REPORTED = "success"
"""The field of a harness's report that says whether it solved its task."""
HARNESS = "harness:"
"""What the names of harnesses begin with."""
MAX_INDEX = 2**31 - 1
MAX_OPTION = 2**31

_KIND = re.compile(
    r"(openenv|agentgym|gym|reasoning-gym|textworld|trl|harness):([a-z0-9][a-z0-9._-]{0,63})"
)
_ENTRY = re.compile(r"[A-Za-z_][\w.]{0,127}:[A-Za-z_]\w{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OURS = ("OPENAI_", "CHORALE_")
_RESERVED_FAMILIES = frozenset({"other"})

Text = Annotated[str, Field(min_length=1, max_length=4_000)]
Label = Annotated[str, Field(min_length=1, max_length=64)]
Key = Annotated[str, Field(min_length=1, max_length=64)]
Family = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}$")]
Count = Annotated[int, Field(ge=0, le=SPLIT_SIZE)]
Index = Annotated[int, Field(ge=0, le=MAX_INDEX)]
Listed = Annotated[tuple[Index, ...], Field(max_length=100_000)]
Bound = Annotated[float, Field(ge=-1e9, le=1e9)]
Constants = dict[Key, Any]
Argument = Annotated[str, Field(min_length=1, max_length=4_000)]
Variable = Annotated[str, Field(max_length=4_000)]
Number = Annotated[int, Field(ge=-MAX_OPTION, le=MAX_OPTION)] | Bound
Scalar = bool | Number | Annotated[str, Field(max_length=256)]
Option = Scalar | Annotated[list[Scalar], Field(max_length=64)]
"""An argument of a package's own: typed and bounded, and checked again by the package."""


def kind_of(name: str) -> tuple[str, str]:
    """Kind and alias of a foreign environment's name, as in ``openenv:calendar``.

    Raises:
        ValueError: The name has another form.
    """
    match = _KIND.fullmatch(name)
    if match is None:
        raise ValueError(
            f"{name!r} is not kind:alias; kinds: {', '.join(KINDS)}; alias: lower-case letters, "
            "digits, '.', '_', '-'"
        )
    return match[1], match[2]


class _Section(BaseModel):
    """One table: frozen, strict, closed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class SuccessRule(_Section):
    """``success``: exactly one of three ways to tell that an episode was solved."""

    reward_at_least: Bound | None = None
    """The last step's reward is at least this."""
    return_at_least: Bound | None = None
    """The sum of the episode's rewards is at least this."""
    info: Key | None = None
    """The last step's info has this key, and it is true (``gym``, and ``won`` of ``textworld``)."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [self.reward_at_least, self.return_at_least, self.info]
        if sum(rule is not None for rule in given) != 1:
            raise ValueError("give exactly one of reward_at_least, return_at_least and info")
        return self


class TaskTable(_Section):
    """``tasks``: which of the environment's own tasks belong to which split.

    Counts deal consecutive tasks out, in the order pretrain, train, held_out, from ``first`` on.
    Lists name them. Without the table every task id is a seed of its own.
    """

    first: Index = 0
    """Where counting starts."""
    pretrain: Count | Listed = 0
    """Tasks that a base model may have seen."""
    train: Count | Listed
    """Tasks that silos explore."""
    held_out: Count | Listed
    """Tasks that everybody is judged on."""

    @model_validator(mode="after")
    def _disjoint(self) -> Self:
        parts = (self.pretrain, self.train, self.held_out)
        listed = [index for part in parts if isinstance(part, tuple) for index in part]
        if listed and any(isinstance(part, int) and part for part in parts):
            raise ValueError("give counts for all splits or lists for all splits")
        if listed and self.first:
            raise ValueError("first goes with counts")
        if len(set(listed)) != len(listed):
            raise ValueError("a task is listed twice; the splits must not share a task")
        if not self.size(Split.TRAIN):
            raise ValueError("there are no tasks to train on")
        return self

    def size(self, split: Split) -> int:
        """How many tasks a split has."""
        part = self._part(split)
        return part if isinstance(part, int) else len(part)

    def index(self, split: Split, position: int) -> int:
        """The environment's own number of a split's task."""
        part = self._part(split)
        if isinstance(part, tuple):
            return part[position]
        earlier = list(Split)[: list(Split).index(split)]
        return self.first + sum(self.size(other) for other in earlier) + position

    def _part(self, split: Split) -> int | tuple[int, ...]:
        if split is Split.PRETRAIN:
            return self.pretrain
        return self.train if split is Split.TRAIN else self.held_out


class ForeignSpec(_Section):
    """What all kinds have in common."""

    name: Annotated[str, Field(exclude=True)]
    """How plans name it; the key of the table, not a key in it."""
    instruction: Text
    """What the agent is told once."""
    examples: Annotated[tuple[tuple[Text, Text], ...], Field(max_length=16)] = ()
    """Turns shown before the first: an observation and the action that answers it."""
    family: Family
    """Public name in metrics and clusters; silo.toml's reader takes the alias when absent."""
    max_steps: Annotated[int, Field(ge=1, le=1_000)]
    """Steps after which an episode is cut off."""
    success: SuccessRule
    """When an episode counts as solved."""
    labels: Annotated[tuple[Label, ...], Field(min_length=1, max_length=64)] = ("all",)
    """What tasks are dealt out and reported by: a split's tasks carry them in turn."""
    tasks: TaskTable | None = None
    """Which tasks there are; every task id is a seed when absent."""
    actions: Annotated[tuple[Label, ...], Field(max_length=256)] = ()
    """Words for numbered actions, in their order; without them the agent's text is the action."""

    @field_validator("family")
    @classmethod
    def _free(cls, value: str) -> str:
        if value in _RESERVED_FAMILIES:
            raise ValueError(f"the family {value!r} is reserved")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for field, words in (("labels", self.labels), ("actions", self.actions)):
            if len(set(words)) != len(words):
                raise ValueError(f"{field}: a word is there twice")
        if SPLIT_SIZE % len(self.labels):
            raise ValueError(
                f"labels: {len(self.labels)} of them do not divide a split of {SPLIT_SIZE} tasks"
            )
        return self

    def task_ids(self, split: Split, shard: Shard | None) -> range:
        """The task ids of a split, or of one shard of it.

        Raises:
            ShardError: The labels cannot be dealt out evenly over that many shards.
        """
        ids = task_range(split, labels=len(self.labels), shard=shard)
        if self.tasks is None:
            return ids
        start = list(Split).index(split) * SPLIT_SIZE
        return range(ids.start, start + self.tasks.size(split), ids.step)

    def task_index(self, task_id: int) -> int:
        """The environment's own seed or number of a task.

        Raises:
            TaskIdError: The task is in no split.
        """
        label_index(task_id, labels=len(self.labels))
        if self.tasks is None:
            return task_id
        part, position = divmod(task_id, SPLIT_SIZE)
        split = list(Split)[part]
        if position >= self.tasks.size(split):
            raise TaskIdError(f"{self.name} has no task {task_id}")
        return self.tasks.index(split, position)

    def require_shard(self, count: int) -> None:
        """Refuse a number of shards that the labels cannot be dealt out over.

        Raises:
            ShardError: It does not divide the number of labels.
        """
        if len(self.labels) % count:
            raise ShardError(f"{self.name}: {len(self.labels)} labels over {count} shards")


class ServerSpec(ForeignSpec):
    """A server on loopback or behind TLS."""

    url: Annotated[str, Field(min_length=1, max_length=512)]
    """Where it listens."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    """For one whole answer, connecting included."""
    max_message_bytes: Annotated[int, Field(ge=1024, le=1 << 24)] = 1 << 20
    """Bytes of the largest answer."""

    @model_validator(mode="after")
    def _no_info(self) -> Self:
        if self.success.info is not None:
            raise ValueError("success: this protocol has no info; use a reward")
        return self


class OpenEnvSpec(ServerSpec):
    """``openenv:``, the WebSocket of an OpenEnv server."""

    action: Annotated[Constants, Field(max_length=32)]
    """The action as the server's schema wants it; the text ``{action}`` stands for the agent's."""
    observation: Annotated[tuple[Key, ...], Field(min_length=1, max_length=16)]
    """Fields of the observation that the agent sees; with one of them, its bare value."""
    task_key: Key = "seed"
    """Name of the task's number in the reset message."""
    reset: Constants = Field(default={}, max_length=32)
    """What else the reset message carries."""

    @field_validator("url")
    @classmethod
    def _private(cls, value: str) -> str:
        return _require_private(value, plain="ws", tls="wss")

    @field_validator("action")
    @classmethod
    def _one_place(cls, value: dict[str, Any]) -> dict[str, Any]:
        if _places(value) != 1:
            raise ValueError(f'exactly one value must be "{ACTION}"')
        return value


class AgentGymSpec(ServerSpec):
    """``agentgym:``, the HTTP server of an AgentGym environment."""

    server: Literal["babyai", "maze", "standard", "textcraft", "webshop", "wordle"]
    """Which of their dialects it speaks."""

    @field_validator("url")
    @classmethod
    def _private(cls, value: str) -> str:
        return _require_private(value, plain="http", tls="https").rstrip("/")

    @model_validator(mode="after")
    def _texts(self) -> Self:
        if self.actions:
            raise ValueError("actions: AgentGym servers take text")
        return self


class GymSpec(ForeignSpec):
    """``gym:``, a Gymnasium environment in this process: code that the operator installed."""

    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """A registered Gymnasium id."""
    entry_point: Annotated[str, Field(max_length=200)] | None = None
    """``module:attribute``, called with ``options``; instead of an id."""
    options: Constants = Field(default={}, max_length=32)
    """Arguments of the environment."""
    observation: Annotated[tuple[Key, ...], Field(max_length=16)] = ()
    """Keys of a dictionary observation that the agent sees; empty for a bare text."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.id is None) == (self.entry_point is None):
            raise ValueError("give either id or entry_point")
        if self.entry_point is not None and _ENTRY.fullmatch(self.entry_point) is None:
            raise ValueError("entry_point is not module:attribute")
        return self


class HarnessSpec(ForeignSpec):
    """``harness:``, a command that solves a task with a model it reaches over the gateway."""

    instruction: Annotated[str, Field(max_length=4_000)] = ""
    """Handed to the command with the task; the prompt is the command's own to write."""
    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64)]
    """Program and arguments: an absolute path, or a name that the system's PATH has."""
    environment: Annotated[dict[str, Variable], Field(max_length=64)] = {}
    """Variables beside those that every harness gets."""
    reward_range: tuple[Bound, Bound] = (0.0, 1.0)
    """The least and the greatest reward that it may report."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Most seconds of one task; while the model answers they do not count."""
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """Most tokens of one task, read and written."""
    max_empty_answers: Annotated[int, Field(ge=1, le=1_000)] = 3
    """So many answers without a word in a row end the task."""
    max_forks: Annotated[int, Field(ge=0, le=64)] = 0
    """How often it may go on from another history than the recorded one."""
    max_body_bytes: Annotated[int, Field(ge=1_024, le=1 << 24)] = 1 << 20
    """Bytes of the largest request."""
    max_output_bytes: Annotated[int, Field(ge=256, le=1 << 24)] = 1 << 16
    """Most that it may write to its standard output."""
    at_once: Annotated[int, Field(ge=1, le=256)] = 8
    """The most of its processes that run at once."""

    @field_validator("command")
    @classmethod
    def _program(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "/" in value[0] and not value[0].startswith("/"):
            raise ValueError("the program is neither an absolute path nor a name on the PATH")
        if any("\0" in part for part in value):
            raise ValueError("an argument holds a zero byte")
        return value

    @field_validator("environment")
    @classmethod
    def _variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if _VARIABLE.fullmatch(name) is None or "\0" in text:
                raise ValueError(f"{name!r} cannot be a variable of the environment")
            if name.startswith(_OURS):
                raise ValueError(f"{name!r}: OPENAI_ and CHORALE_ variables are the gateway's own")
        return value

    @model_validator(mode="after")
    def _judged(self) -> Self:
        least, greatest = self.reward_range
        if least >= greatest:
            raise ValueError("reward_range: the least reward comes first, and below the greatest")
        if self.examples or self.actions:
            raise ValueError("examples and actions: a harness writes its own prompts")
        rule = self.success
        if rule.return_at_least is not None:
            raise ValueError("success: a harness reports one reward; use reward_at_least or info")
        if rule.info is not None and rule.info != REPORTED:
            raise ValueError(f'success: of a report only info = "{REPORTED}" can be asked')
        if rule.reward_at_least is not None and not least < rule.reward_at_least <= greatest:
            raise ValueError("success: reward_at_least lies outside reward_range, or is its least")
        return self


class ReasoningGymSpec(ForeignSpec):
    """``reasoning-gym:``, a generator of the package reasoning-gym; its scorer judges."""

    generator: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")] | None = None
    """Which one; without it the alias names it."""
    options: Annotated[dict[Key, Option], Field(max_length=32)] = {}
    """Fields of the generator's configuration."""
    instruction: Text = "Answer the question. Give the answer alone, without an explanation."
    max_steps: Annotated[int, Field(ge=1, le=1)] = 1
    success: SuccessRule = SuccessRule(reward_at_least=1.0)
    """The score is between 0 and 1."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    """For making a question, and for scoring an answer."""

    @model_validator(mode="after")
    def _plain(self) -> Self:
        _require_text(self, info=None)
        for key in ("seed", "size"):
            if key in self.options:
                raise ValueError(f"options: {key} is what addresses the tasks")
        return self


class TextWorldSpec(ForeignSpec):
    """``textworld:``, games that the package textworld makes: one for each task."""

    rooms: Annotated[int, Field(ge=1, le=20)] = 2
    """Rooms of each game's map."""
    objects: Annotated[int, Field(ge=1, le=50)] = 4
    """Things that lie in them."""
    quest_length: Annotated[int, Field(ge=1, le=10)] = 2
    """Commands that the shortest solution has."""
    admissible: bool = False
    """Every observation ends with the commands that are possible."""
    games: Annotated[str, Field(max_length=512)] | None = None
    """Directory that keeps games; without it they last as long as the process."""
    max_games: Annotated[int, Field(ge=64, le=10_000)] = 256
    """Games kept, some 400 KB each; the one that was not played for longest goes first."""
    instruction: Text = "Play the text adventure. Answer with one command."
    max_steps: Annotated[int, Field(ge=1, le=1_000)] = 20
    success: SuccessRule = SuccessRule(info="won")
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 120.0
    """For making a game."""

    @model_validator(mode="after")
    def _plain(self) -> Self:
        _require_text(self, info="won")
        if self.games is not None and not self.games.startswith("/"):
            raise ValueError("games: an absolute path")
        return self


class TrlSpec(ForeignSpec):
    """``trl:``, a class for TRL's ``environment_factory``: code that the operator installed."""

    entry_point: Annotated[str, Field(max_length=200)]
    """``module:attribute``, called with ``options``."""
    options: Constants = Field(default={}, max_length=32)
    """Arguments of the class."""
    task_key: Key = "seed"
    """Name of the task's number among the arguments of ``reset``."""
    reset: Constants = Field(default={}, max_length=32)
    """What else ``reset`` is given."""
    reward: Key = "get_reward"
    """A method without arguments, or an attribute; read once, when the episode ends."""
    done: Key | None = None
    """An attribute that is true once the episode is over."""

    @model_validator(mode="after")
    def _plain(self) -> Self:
        _require_text(self, info=None)
        if _ENTRY.fullmatch(self.entry_point) is None:
            raise ValueError("entry_point is not module:attribute")
        return self


KINDS: dict[str, type[ForeignSpec]] = {
    "agentgym": AgentGymSpec,
    "gym": GymSpec,
    "harness": HarnessSpec,
    "openenv": OpenEnvSpec,
    "reasoning-gym": ReasoningGymSpec,
    "textworld": TextWorldSpec,
    "trl": TrlSpec,
}
"""The spec of each kind."""


def _require_text(spec: ForeignSpec, *, info: str | None) -> None:
    """Refuse what has no place where an answer is text and the info has this key at most."""
    if spec.actions:
        raise ValueError("actions: answers are text here")
    if spec.success.info not in {None, info}:
        raise ValueError("success: use a reward" + (f" or {info}" if info else ""))


def _places(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_places, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_places, value))
    return int(value == ACTION)


def _require_private(url: str, *, plain: str, tls: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from error
    if parts.scheme not in {plain, tls} or not host or port == 0:
        raise ValueError(f"not a {plain}:// or {tls}:// URL")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("a user, a password, a query or a fragment has no place here")
    if parts.scheme == plain and not is_loopback(host):
        raise ValueError(
            f"{plain}:// to {host!r} leaves this machine unprotected, and the protocol has no "
            f"authentication: use {tls}:// or a server on loopback"
        )
    return url
