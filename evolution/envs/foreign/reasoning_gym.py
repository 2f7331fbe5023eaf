"""``reasoning-gym:``, the generators of the package reasoning-gym: a question, an answer, a score.

The package runs in a process of its own (``reasoning_gym_scorer.py`` says why), which all
environments of this kind share. Invariants:

1. The task's number is the generator's seed, so the splits have no seed in common.
2. An episode is one answer. Its reward is what the generator's ``score_answer`` gives, between 0
   and 1; the operator's rule says from where on that is a success.
3. A question that is longer than an observation may be ends the episode, for the agent would be
   asked something else.

Covered: every generator but ``composite``, with options of numbers, texts and lists of them. Not
covered: questions that come again. A generator with few of them asks the same ones in each split.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from evolution.envs.foreign.child import Role, children_of
from evolution.envs.foreign.foreign import ForeignEnvironment, Turn
from evolution.envs.foreign.reply import MAX_OBSERVATION_CHARS, field_of, reward_of
from evolution.envs.foreign.spec import ReasoningGymSpec, kind_of
from evolution.errors import EnvironmentSetupError, ForeignReplyError

__all__ = ["MAX_ANSWER_CHARS", "SCORER", "ReasoningGymEnvironment"]

MAX_ANSWER_CHARS: Final = 4_000
SCORER: Final = Role(module="evolution.envs.foreign.reasoning_gym_scorer", file_bytes=0)


class ReasoningGymEnvironment(ForeignEnvironment[ReasoningGymSpec]):
    """See the module."""

    _index: int = 0

    def _begin(self, index: int) -> Turn:
        if find_spec("reasoning_gym") is None:
            raise EnvironmentSetupError(
                f"{self.name} needs the package reasoning-gym: pip install 'chorale[reasoning-gym]'"
            )
        self._index = index
        question = field_of(self._ask(), "question")
        if isinstance(question, str) and len(question) > MAX_OBSERVATION_CHARS:
            raise ForeignReplyError(f"a question has more than {MAX_OBSERVATION_CHARS} characters")
        return Turn(observation=question)

    def _act(self, action: str | int) -> Turn:
        reply = self._ask(answer=str(action)[:MAX_ANSWER_CHARS])
        score = reward_of(field_of(reply, "score"))
        if not 0.0 <= score <= 1.0:
            raise ForeignReplyError("a score is not between 0 and 1")
        return Turn(
            observation="",
            reward=score,
            terminated=True,
            info={"valid": field_of(reply, "valid")},
        )

    def _end(self) -> None:
        """The package's process is everybody's."""

    def _ask(self, **answer: str) -> Any:
        question = {
            "generator": self._spec.generator or kind_of(self._spec.name)[1],
            "options": self._spec.options,
            "index": self._index,
            **answer,
        }
        return children_of(SCORER).ask(question, timeout_s=self._spec.timeout_s)
