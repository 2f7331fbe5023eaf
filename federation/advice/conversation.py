"""One consultation of a model, request after request, as a function of the answers so far.

    begin(state, budget, model) -> Asking
    Asking.answered(content)    -> Asking | Ended     the body that the endpoint sent
    Asking.failed(failure)      -> Ended              there is none

Ordered invariants:

1. The same state, budget, model's name and answers lead to the same requests, byte for byte, and to
   the same end. Nothing else goes in: no clock, no random number, nothing of the endpoint's but its
   bodies.
2. A consultation ends, after at most ``Budget.calls`` requests, with a proposal that the judge took
   or with a word of ``GaveUp``. Tokens are counted by the endpoint's own figure where that is
   possible at all, else by the bytes, and no request is made that they no longer bear; an answer
   that is a proposal counts although it used up the last of them.
3. After an answer that is no proposal the model is told why, in a text of ours, at most
   ``Budget.corrections`` times. Its own words are never sent back: an answer that was refused
   stands in the conversation as a fixed text, a call as a tool's name with arguments in one form.
4. A request has at most ``MAX_REQUEST_BYTES`` bytes. What is looked up beyond that, or beyond what
   the tokens that are left bear, is answered with a text that says so.
5. A request either offers tools or holds the answer to the schema: with both, common servers let
   no tool be called, or refuse the request. Tools are offered until they are used up, an answer was
   refused, or the last request has come, so a correction is held to the schema.
6. Whatever a model needs to decide stands in the first message, for those that can call no tool.

Temperature 0 and a fixed seed are asked for, and do not make an endpoint deterministic: batching
changes results. What reproduces a decision is its record (``federation.advice.record``).

Covered: bodies of any bytes, endpoints that repeat themselves, loops of calls. Not covered: time,
which whoever asks limits (``server/advisor``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from federation.advice import tools
from federation.advice.proposal import (
    MAX_REASON_CHARS,
    Closed,
    Limits,
    Proposal,
    judge,
    schema,
)
from federation.advice.reply import Reply, WrittenCall, read_reply
from federation.advice.state import RoundState
from federation.advice.strict_json import canonical_json
from federation.advice.tools import TOOLS, ToolCall

__all__ = [
    "MAX_REQUEST_BYTES",
    "Asking",
    "Budget",
    "Ended",
    "Failure",
    "GaveUp",
    "GiveUp",
    "Outcome",
    "begin",
]

MAX_REQUEST_BYTES: Final = 96 << 10
MAX_CALLS_AT_ONCE: Final = 4
MOST_ANSWER_TOKENS: Final = 1024
LEAST_ANSWER_TOKENS: Final = 64
"""A proposal with a short reason."""
BYTES_PER_TOKEN: Final = 3
"""Fewer than any usual tokenizer has in English and JSON, so an estimate is too large."""
SEED: Final = 0
_RESERVED_BYTES: Final = 8 << 10
"""Of a request, for corrections and for answers that say that there is no room."""
_NEWEST_AT_ONCE: Final = 3
_NO_ROOM: Final = '{"error":"no room for more: answer now"}'
_NO_MORE: Final = '{"error":"no more calls: answer now"}'

SYSTEM: Final = """\
You advise the coordinator of a federation. Sites (silos) train an adapter together. In each round \
some of them train at home and upload a masked update; only the sum of the updates is ever seen.
What to weigh:
- Fewer silos save traffic and waiting. More silos make the error of the mean smaller, about as \
one over the square root of their number. Where the standard error of success is larger than its \
changes, you see noise, not progress.
- A round is as slow as its slowest silo, and silos that are not ready at the deadline are left \
out. A short deadline saves time and loses silos.
- Silos that are down, have a queue, were lost lately or have little budget left may be lost.
Tools, if they are offered: get_facts(silo_id) gives what a silo published about itself, \
get_round_summary(round) gives one earlier round, get_history(last) gives the newest rounds and \
the means of those before. What you need is in the first message; look up only what changes your \
mind.
Answer with one JSON object and nothing around it: no code fence, no other words. Say in "reason" \
in one or two sentences why. Numbers outside the given limits are refused."""


TOOL_CALLS: Final = 8
"""Most that a model may look up, where its server takes tools."""


class Budget(Closed):
    """What one consultation may cost at most."""

    calls: Annotated[int, Field(ge=1, le=32)] = 8
    """Requests."""
    tokens: Annotated[int, Field(ge=256, le=1_000_000)] = 20_000
    """Of all requests and answers together."""
    corrections: Annotated[int, Field(ge=0, le=2)] = 2
    tool_calls: Annotated[int, Field(ge=0, le=16)] = TOOL_CALLS
    """Answered; with 0 none are offered, for servers and models that know none."""
    seconds: Annotated[int, Field(ge=1, le=600)] = 20
    """From the first request to the end."""


class Failure(StrEnum):
    """Why an endpoint gave no body."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    REDIRECT = "redirect"
    HTTP_STATUS = "http_status"
    BAD_HTTP = "bad_http"
    TOO_LARGE = "too_large"
    TRUNCATED = "truncated"
    NO_TIME_LEFT = "no_time_left"
    """It was not asked."""


class GaveUp(StrEnum):
    """Why a consultation ended without a proposal."""

    ENDPOINT = "endpoint"
    """It gave no body; ``failure`` says why."""
    MALFORMED_BODY = "malformed_body"
    NO_CONTENT = "no_content"
    REFUSED = "refused"
    """The last answer that could be corrected was refused too; ``problem`` says why."""
    CALLS = "calls"
    TOKENS = "tokens"


class GiveUp(Closed):
    """An end without a proposal."""

    gave_up: GaveUp
    failure: Failure | None = None
    problem: Annotated[str, Field(max_length=400)] = ""
    """A text of the judge's, or of this module."""


Outcome = Proposal | GiveUp


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The end."""

    outcome: Outcome
    tokens: int
    """Of the whole consultation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """A request that is to be answered."""

    state: RoundState
    budget: Budget
    model: str
    messages: tuple[dict[str, Any], ...]
    calls: int = 0
    """Requests that were answered."""
    tokens: int = 0
    """Of those."""
    looked_up: int = 0
    corrections: int = 0
    max_tokens: int = MOST_ANSWER_TOKENS

    @property
    def body(self) -> bytes:
        """The request, as it is sent and hashed."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(self.messages),
            "temperature": 0,
            "seed": SEED,
            "max_tokens": self.max_tokens,
            "stream": False,
        }
        if self.budget.tool_calls:
            body["tools"] = list(TOOLS)
            body["tool_choice"] = "auto" if self.may_look_up else "none"
        if not self.may_look_up:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {
                    "name": "proposal",
                    "strict": True,
                    "schema": schema(self.state.limits),
                },
            }
        # In the order they have: a server that holds answers to the schema asks for its keys so.
        return canonical_json(body, sort_keys=False)

    @property
    def may_look_up(self) -> bool:
        """Whether tools are offered."""
        is_last = self.calls + 1 == self.budget.calls
        return self.looked_up < self.budget.tool_calls and not self.corrections and not is_last

    def answered(self, content: bytes) -> Asking | Ended:
        """Take a body."""
        reply = read_reply(content)
        used = self._counted(content, reply)
        if reply is None:
            return self._given_up(GaveUp.MALFORMED_BODY, used)
        if reply.calls:
            return self._looked_up(reply.calls, used)
        if not reply.content:
            return self._given_up(GaveUp.NO_CONTENT, used)
        judged = judge(reply.content, self.state.limits)
        if isinstance(judged, Proposal):
            return Ended(outcome=judged, tokens=self.tokens + used)
        return self._corrected(judged.reason, used)

    def failed(self, failure: Failure) -> Ended:
        """There is no body."""
        return Ended(
            outcome=GiveUp(gave_up=GaveUp.ENDPOINT, failure=failure),
            tokens=self.tokens,
        )

    def _looked_up(self, written: tuple[WrittenCall, ...], used: int) -> Asking | Ended:
        if not self.may_look_up:
            return self._corrected("no tool may be called any more: answer", used)
        if len(written) > MAX_CALLS_AT_ONCE:
            return self._corrected(f"at most {MAX_CALLS_AT_ONCE} tools are called at once", used)
        calls = [ToolCall.read(call.name, call.arguments) for call in written]
        understood = [call for call in calls if call is not None]
        if len(understood) < len(calls):
            return self._corrected("a tool call names no tool, or other arguments than its", used)
        numbered = [
            (f"call_{self.looked_up + place}", call) for place, call in enumerate(understood, 1)
        ]
        asked: dict[str, Any] = {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": name,
                    "type": "function",
                    "function": {"name": call.tool.value, "arguments": call.arguments()},
                }
                for name, call in numbered
            ],
        }
        messages, answered = [*self.messages, asked], self.looked_up
        # What the next request may have, so that an answer is still to be had for it.
        left = self.budget.tokens - self.tokens - used - MOST_ANSWER_TOKENS
        most_bytes = min(MAX_REQUEST_BYTES - _RESERVED_BYTES, left * BYTES_PER_TOKEN)
        # The last requests have it instead of tools.
        most_bytes -= len(canonical_json(schema(self.state.limits)))
        for name, call in numbered:
            answered += 1
            told = tools.answer(call, self.state)
            if answered > self.budget.tool_calls:
                told = _NO_MORE
            elif self._size(messages) + len(canonical_json(told)) > most_bytes:
                told = _NO_ROOM
            messages.append({"role": "tool", "tool_call_id": name, "content": told})
        return self._next(tuple(messages), used, looked_up=answered, corrections=self.corrections)

    def _corrected(self, problem: str, used: int) -> Asking | Ended:
        if self.corrections >= self.budget.corrections:
            return self._given_up(GaveUp.REFUSED, used, problem)
        told = (
            f"Your answer was refused: {problem}. Answer again with one JSON object with the keys "
            f"{', '.join(schema(self.state.limits)['properties'])}, and nothing around it."
        )
        messages = (
            *self.messages,
            # Templates of some models want the two roles in turn.
            {"role": "assistant", "content": "(This answer was refused.)"},
            {"role": "user", "content": told},
        )
        return self._next(
            messages, used, looked_up=self.looked_up, corrections=self.corrections + 1
        )

    def _next(
        self, messages: tuple[dict[str, Any], ...], used: int, *, looked_up: int, corrections: int
    ) -> Asking | Ended:
        if self.calls + 1 >= self.budget.calls:
            return self._given_up(GaveUp.CALLS, used)
        following = Asking(
            state=self.state,
            budget=self.budget,
            model=self.model,
            messages=messages,
            calls=self.calls + 1,
            tokens=self.tokens + used,
            looked_up=looked_up,
            corrections=corrections,
        )
        return _affordable(following)

    def _given_up(self, why: GaveUp, used: int, problem: str = "") -> Ended:
        return Ended(
            outcome=GiveUp(gave_up=why, problem=problem),
            tokens=self.tokens + used,
        )

    def _counted(self, content: bytes, reply: Reply | None) -> int:
        """Tokens of this request and its answer."""
        sent_bytes = len(self.body)
        said = None if reply is None else reply.tokens
        # A token of a prompt has a byte at least; templates add a few to each message.
        most = sent_bytes + self.max_tokens + 16 * len(self.messages)
        if said is not None and 1 <= said <= most:
            return said
        return min(_tokens(sent_bytes + len(content)), most)

    def _size(self, messages: list[dict[str, Any]]) -> int:
        return len(self.body) + len(canonical_json(messages)) - len(canonical_json(self.messages))


def begin(state: RoundState, budget: Budget, model: str) -> Asking | Ended:
    """The first request; the end at once where the budget does not bear it."""
    first = Asking(
        state=state,
        budget=budget,
        model=model,
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": _question(state)},
        ),
    )
    return _affordable(first)


def _affordable(asking: Asking) -> Asking | Ended:
    """The request with as many tokens to answer as the budget bears, or the end."""
    left = asking.budget.tokens - asking.tokens - _tokens(len(asking.body))
    if left < LEAST_ANSWER_TOKENS:
        return Ended(outcome=GiveUp(gave_up=GaveUp.TOKENS), tokens=asking.tokens)
    return Asking(
        state=asking.state,
        budget=asking.budget,
        model=asking.model,
        messages=asking.messages,
        calls=asking.calls,
        tokens=asking.tokens,
        looked_up=asking.looked_up,
        corrections=asking.corrections,
        max_tokens=min(left, MOST_ANSWER_TOKENS),
    )


def _tokens(size_bytes: int) -> int:
    return -(-size_bytes // BYTES_PER_TOKEN)


def _question(state: RoundState) -> str:
    limits = state.limits
    known: dict[str, Any] = {
        "round": state.round,
        "rounds": state.rounds,
        "silos_there": len(limits.alive),
        "fewest_silos": limits.least,
        "facts": tools.facts_of_all(state),
        "newest_rounds": [tools.row_of(past) for past in state.history[-_NEWEST_AT_ONCE:]],
    }
    if limits.may_choose and limits.names_silos:
        known["ids"] = list(limits.alive)
    lines = [
        f"Round {state.round} of {state.rounds} is about to be asked. What is known:",
        canonical_json(known).decode(),
        "Answer with one JSON object with exactly these keys:",
        *(f"- {key}: {meaning}" for key, meaning in _meanings(limits)),
    ]
    return "\n".join(lines)


def _meanings(limits: Limits) -> list[tuple[str, str]]:
    there = len(limits.alive)
    meanings = {
        "reason": f"a text of at most {MAX_REASON_CHARS} characters, why",
        "count": f"an integer from {limits.least} to {there}, how many silos are asked",
        "silos": f"a list of {limits.least} to {there} different ids, which silos are asked",
        "ready_deadline_s": "an integer{}, the seconds a silo has until it is ready",
        "local_epochs": "an integer{}, how often each silo goes over its data",
        "stop": "true if the run should be paused after this round, else false",
        "diagnose": "true if the silos should run their diagnosis, else false",
    }
    ranges = {
        "ready_deadline_s": limits.ready_deadline_s,
        "local_epochs": limits.local_epochs,
    }
    return [
        (key, meanings[key].format(_from_to(ranges.get(key))))
        for key in schema(limits)["properties"]
    ]


def _from_to(limit: tuple[int, int] | None) -> str:
    return "" if limit is None else f" from {limit[0]} to {limit[1]}"
