"""One harness at one task: what it asked, what the model said, and what came of it.

A session keeps *traces*. A trace is a conversation as the engine saw it: context tokens, sampled
tokens, context tokens, and so on. Invariants:

1. A request whose history extends a trace appends its new messages to it as tokens; what was
   recorded is neither rendered nor tokenised again. Whether it extends is decided message by
   message, the recorded answers among them.
2. Any other history **forks**: it opens a trace of its own, whose draws are its own as well. A
   session may fork ``max_forks`` times, by default never: one more ends it
   (``HarnessHistoryError``).
3. A session becomes one trajectory: the trace that the last answer belongs to. Its reward is that
   trace's last step's. What other traces hold is trained on by nobody, for one try is one member of
   its group and one unit's contribution.
4. A session is over once, by the first thing that ends it, and answers nothing afterwards. Only its
   own model is asked, with its own token, and one request at a time: others wait.
5. Limits in numbers (answers, tokens, context, answers without a word in a row) end a try as an
   environment's ``max_steps`` does: unsolved, ``truncated``, kept, with the least reward of the
   range. A clock, a death and a lie drop it.
6. Seconds are the harness's own: while the model answers they do not count, for a batch shares it.

Covered: bookkeeping, without a process or a socket. Not covered: a harness that reports a reward it
should not have given. It is the operator's own, and its reward is the label.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from evolution.envs.foreign.spec import HarnessSpec
from evolution.errors import (
    EvolutionError,
    HarnessExitError,
    HarnessHistoryError,
    HarnessLimitError,
    HarnessModelError,
    HarnessReportError,
    RequestRefusedError,
)
from evolution.gateway.layout import Layout
from evolution.gateway.request import ChatRequest, Message, Report, object_of, read_report
from evolution.rollout.engine import Generation, Prompt, Sampling
from evolution.trajectory import Step, Task, Trajectory

__all__ = ["Answer", "Ask", "Session"]

Ask = Callable[[Prompt, Sampling], Future[Generation]]
"""Hands a prompt to whoever drives the engine."""
_FORK_BITS: Final = 40
_LOOK_S: Final = 0.05
_MAX_TEXT: Final = 4_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a request is answered with."""

    number: int
    """Of the session's answers, from 1."""
    message: Message
    """The model's."""
    finish_reason: str
    """``stop``, ``length`` or ``tool_calls``."""
    prompt_tokens: int
    """Of the whole history."""
    completion_tokens: int
    """Sampled."""


@dataclass(kw_only=True, slots=True)
class _Trace:
    """One conversation as the engine saw it."""

    key: int
    tools: str
    """As canonical JSON: with other tools a history is another one."""
    messages: list[Message] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


class Session:
    """See the module."""

    def __init__(
        self,
        *,
        spec: HarnessSpec,
        task: Task,
        key: int,
        sampling: Sampling,
        layout: Layout,
        turn_end_id: int,
        context_limit: int,
        adapter: str,
        ask: Ask,
    ) -> None:
        """``key`` and the fork's number decide the draws; ``adapter`` is the engine's version."""
        self.spec = spec
        self.task = task
        self.sampling = sampling
        self.model = f"chorale-{adapter[:16] or 'base'}"
        self._adapter = adapter
        self._key = key
        self._layout = layout
        self._turn_end_id = turn_end_id
        self._context_limit = context_limit
        self._ask = ask
        self._one_at_a_time = threading.Lock()
        self._state = threading.Lock()
        self._traces: list[_Trace] = []
        self._last: _Trace | None = None
        self._tokens = 0
        self._without_words = 0
        self._outgrown = False
        self._report: Report | None = None
        self._ended: EvolutionError | None = None
        self._over = threading.Event()
        self._began_s = time.monotonic()
        self._model_s = 0.0
        self._asked_s: float | None = None
        self.answers = 0
        """Given so far, on all traces."""

    @property
    def over(self) -> bool:
        """Whether something ended it."""
        return self._over.is_set()

    @property
    def ended_by(self) -> EvolutionError | None:
        """What ended it, if it did not end by itself."""
        return self._ended

    @property
    def own_s(self) -> float:
        """Seconds that the harness has taken; the model's are not among them."""
        with self._state:
            now = time.monotonic()
            waiting = 0.0 if self._asked_s is None else now - self._asked_s
            return now - self._began_s - self._model_s - waiting

    def begin(self) -> None:
        """Its clock begins here."""
        self._began_s = time.monotonic()

    def end(self, error: EvolutionError | None = None) -> None:
        """End it; what ended it first stays."""
        if self._outgrown and isinstance(error, HarnessExitError):
            error = HarnessLimitError("the harness could not go on with less")
        with self._state:
            if not self._over.is_set():
                self._ended = error
                self._over.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait so long for its end; returns whether it is over."""
        return self._over.wait(timeout_s)

    def complete(self, request: ChatRequest) -> Answer:
        """Answer a request.

        Raises:
            RequestRefusedError: It is not answered, or the session is over.
        """
        with self._one_at_a_time:
            self._require_open()
            if self._report is not None:
                raise RequestRefusedError(403, "session_over", "the task was reported on")
            if request.model != self.model:
                self.end(HarnessModelError("the harness asked for another model than its own"))
                raise RequestRefusedError(
                    404,
                    "model_not_found",
                    "this session has one model, OPENAI_MODEL",
                    param="model",
                )
            if self.answers >= self.spec.max_steps:
                raise self._exhausted("max_steps", "no answer is left")
            trace, context = self._placed(request)
            return self._answered(trace, context, request)

    def report(self, body: Mapping[str, Any]) -> None:
        """Take the harness's report; there is one.

        Raises:
            RequestRefusedError: It is none, or not the first; the session is over.
        """
        with self._one_at_a_time:
            self._require_open()
            try:
                self._reported(body)
            except HarnessReportError as error:
                self.end(error)
                raise RequestRefusedError(400, "report_refused", str(error)) from error

    def finish(self, output: bytes) -> None:
        """Take what the harness wrote; it left by itself, with status 0."""
        with self._one_at_a_time:
            if self.over:
                return
            last = _last_object(output)
            try:
                if last is not None and (self._report is None or "reward" in last):
                    self._reported(last)
            except HarnessReportError as error:
                self.end(error)
            if self._report is None:
                self.end(HarnessReportError("the harness left without a report"))
            self.end()

    def trajectory(self, round_index: int) -> Trajectory | None:
        """What the session came to; None where it is dropped."""
        limit = isinstance(self._ended, HarnessLimitError)
        if not self.over or self._last is None or (self._ended is not None and not limit):
            return None
        report = Report(reward=self.spec.reward_range[0], success=False)
        if not limit:
            if self._report is None:
                return None
            report = self._report
        *earlier, last = self._last.steps
        return Trajectory(
            task=self.task,
            steps=(*earlier, replace(last, reward=report.reward)),
            final_observation="",
            success=report.success,
            adapter_sha256=self._adapter,
            round=round_index,
            truncated=limit,
        )

    def _placed(self, request: ChatRequest) -> tuple[_Trace, list[int]]:
        """The trace that a request goes on with, and the new tokens before its answer."""
        tools = json.dumps(request.tools, sort_keys=True)
        extended = [
            trace
            for trace in self._traces
            if trace.tools == tools and self._extends(request.messages, trace.messages)
        ]
        if extended:
            trace = max(extended, key=lambda one: len(one.messages))
            cut_off = [self._turn_end_id] if trace.steps[-1].cut_off else []
            new = request.messages[len(trace.messages) :]
            return trace, cut_off + self._layout.following(new)
        if len(self._traces) > self.spec.max_forks:
            self.end(HarnessHistoryError("the history does not extend the recorded one"))
            raise RequestRefusedError(
                400,
                "history_edited",
                "the messages do not extend those of an earlier request with its answer, and "
                "max_forks of silo.toml allows no further trace",
                param="messages",
            )
        key = self._key + (len(self._traces) << _FORK_BITS)
        return _Trace(key=key, tools=tools), self._layout.opening(request.messages, request.tools)

    def _extends(self, messages: Sequence[Message], recorded: Sequence[Message]) -> bool:
        return len(messages) >= len(recorded) and all(map(self._layout.same, messages, recorded))

    def _answered(self, trace: _Trace, context: list[int], request: ChatRequest) -> Answer:
        sampling = self.sampling
        if request.max_new_tokens is not None:
            bound = min(request.max_new_tokens, sampling.max_new_tokens)
            sampling = replace(sampling, max_new_tokens=bound)
        prompt = [*trace.ids, *context]
        if len(prompt) + sampling.max_new_tokens > self._context_limit:
            if len(self._traces) <= self.spec.max_forks:
                # It may go on with less, which is a fork. If it dies instead, it outgrew the model.
                self._outgrown = True
                raise RequestRefusedError(
                    400, "context_length_exceeded", "the history is too long for the model"
                )
            raise self._exhausted("context_length_exceeded", "the history is too long")
        if self._tokens + len(context) + sampling.max_new_tokens > self.spec.max_tokens:
            raise self._exhausted("max_tokens", "no token is left")
        generated = self._asked(Prompt(key=trace.key, token_ids=prompt), sampling)
        reading = self._layout.read(generated.token_ids, tools=bool(request.tools))
        new = request.messages[len(trace.messages) :]
        if not trace.steps:
            self._traces.append(trace)
        trace.messages = [*request.messages, reading.message]
        trace.ids = [*prompt, *generated.token_ids]
        trace.steps.append(
            Step(
                observation="\n".join(message.text for message in new)[:_MAX_TEXT],
                action=_shown(reading.message)[:_MAX_TEXT],
                context_ids=tuple(context),
                action_ids=generated.token_ids,
                action_logprobs=generated.logprobs,
                invalid=reading.invalid,
                cut_off=not generated.ended,
            )
        )
        self._last, self._outgrown = trace, False
        self._tokens += len(context) + len(generated.token_ids)
        self.answers += 1
        wordless = not reading.message.text and not reading.message.calls
        self._without_words = self._without_words + 1 if wordless else 0
        if self._without_words >= self.spec.max_empty_answers:
            raise self._exhausted("max_empty_answers", "the model has nothing to say")
        finish = "tool_calls" if reading.message.calls else "stop"
        return Answer(
            number=self.answers,
            message=reading.message,
            finish_reason=finish if generated.ended else "length",
            prompt_tokens=len(prompt),
            completion_tokens=len(generated.token_ids),
        )

    def _asked(self, prompt: Prompt, sampling: Sampling) -> Generation:
        with self._state:
            self._asked_s = time.monotonic()
        future = self._ask(prompt, sampling)
        try:
            while True:
                self._require_open()
                try:
                    return future.result(timeout=_LOOK_S)
                except TimeoutError:
                    continue
                except EvolutionError as error:
                    self.end(error)
                    raise RequestRefusedError(
                        500, "model_failed", "the model did not answer"
                    ) from error
        finally:
            future.cancel()
            with self._state:
                self._model_s += time.monotonic() - (self._asked_s or 0.0)
                self._asked_s = None

    def _reported(self, body: Mapping[str, Any]) -> None:
        if self._report is not None:
            raise HarnessReportError("there is a report already")
        report = read_report(dict(body), self.spec)
        if self._last is None:
            raise HarnessReportError("a report without an answer of the model")
        self._report = report

    def _require_open(self) -> None:
        if self.over:
            raise RequestRefusedError(403, "session_over", "this session is over")

    def _exhausted(self, code: str, message: str) -> RequestRefusedError:
        self.end(HarnessLimitError(message))
        return RequestRefusedError(403, code, message)


def _last_object(output: bytes) -> dict[str, Any] | None:
    """The last line that is not empty, if it is a JSON object."""
    lines = output.strip().splitlines()
    try:
        return object_of(lines[-1]) if lines else None
    except RequestRefusedError:
        return None


def _shown(message: Message) -> str:
    """An answer for the operator's eyes."""
    calls = [f"{call.name}({call.arguments})" for call in message.calls]
    return "\n".join(part for part in (message.text, *calls) if part)
