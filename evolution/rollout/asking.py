"""Words that the model says beside any try: a critique of one, a lesson from several.

Each is a conversation of one turn. What is said is text of the silo's own and stays there.

Invariants:

1. The random draws of an answer depend on the seed and its key, never on the batch.
2. A question that has no tokens or no room in the context, and one that the engine fails to answer,
   costs its own answer alone, which is empty: nobody can tell it from a model that had nothing to
   say, and no unit's text ends the round for others.
3. What was said is cleaned of everything that could open or close a turn, and of bounded length.

Covered: one question, one answer. Not covered: conversations of several turns, which are episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evolution.errors import PartlyAnsweredError
from evolution.local_time import require_time, require_wanted
from evolution.rollout.engine import Generation, Prompt, RolloutEngine, Sampling
from evolution.trajectory import MOST_SAID_TOKENS, Ask
from ops.logs.logger import get_logger

__all__ = ["say"]

_MOST_CHARS: Final = 2_000
_log = get_logger(__name__)


def say(
    engine: RolloutEngine,
    asks: Sequence[Ask],
    keys: Sequence[int],
    *,
    temperature: float,
    seed: int,
    batch_size: int,
) -> list[str]:
    """Ask the model, with whatever adapter the engine holds; answers in order, empty where none.

    Seed and key decide every draw of an answer. ``batch_size`` questions are asked at once.
    """
    said = [""] * len(asks)
    waiting: dict[int, list[tuple[int, Prompt]]] = {}
    for place, (one, key) in enumerate(zip(asks, keys, strict=True)):
        longest = min(one.max_new_tokens, MOST_SAID_TOKENS)
        try:
            prompt = Prompt(key=key, token_ids=engine.chat.opening(one.instruction, one.text))
        except Exception as error:  # noqa: BLE001  # what was seen is data: it costs its own answer
            _log.warning("not_said", error=type(error).__name__)
            continue
        if len(prompt.token_ids) + longest <= engine.context_limit:
            waiting.setdefault(longest, []).append((place, prompt))
    for longest, prompts in sorted(waiting.items()):
        sampling = Sampling(temperature=temperature, max_new_tokens=longest, seed=seed)
        for start in range(0, len(prompts), batch_size):
            require_wanted()
            require_time()
            batch = prompts[start : start + batch_size]
            answers = _answers(engine, [prompt for _, prompt in batch], sampling)
            for (place, _), answer in zip(batch, answers, strict=True):
                if answer is not None:
                    said[place] = engine.chat.text_of(answer.token_ids)[:_MOST_CHARS]
    return said


def _answers(
    engine: RolloutEngine, prompts: Sequence[Prompt], sampling: Sampling
) -> Sequence[Generation | None]:
    """Whole batches, and one by one where a batch failed: one question may have done it."""
    try:
        return engine.generate(prompts, sampling)
    except PartlyAnsweredError as error:
        return [one if isinstance(one, Generation) else None for one in error.answers]
    except Exception as error:  # noqa: BLE001  # an engine's failure costs words, never a round
        _log.warning("not_said", error=type(error).__name__)
        if len(prompts) == 1:
            return [None]
        return [_answers(engine, [prompt], sampling)[0] for prompt in prompts]
