"""A play played out: each wish is answered by a function, and all waves are kept."""

from __future__ import annotations

import numpy as np

from evolution.parts.seam import MemoryView, PartWork
from evolution.trajectory import Ask, Step, Task, Trajectory


def task(number=1, subject=""):
    return Task(environment="room", task_id=number, subject=subject)


def tried(of, *actions, solved=False, saw="a red door", invalid=(), round_index=1, helped_by=()):
    """A try whose first observation is given; the later ones are numbered."""
    return Trajectory(
        task=of,
        steps=tuple(
            Step(
                observation=saw if number == 0 else f"turn {number}",
                action=action,
                context_ids=(1, 2),
                action_ids=tuple(action.encode()),
                action_logprobs=(-0.5,) * len(action),
                invalid=number in invalid,
            )
            for number, action in enumerate(actions or ("wait",))
        ),
        final_observation="the end",
        success=solved,
        adapter_sha256="ab",
        round=round_index,
        helped_by=helped_by,
    )


def play_out(
    play, tasks, answer, *, successes=(), groups=(), principles=(), words="do better", seed=0,
    noted=None,
):  # fmt: skip
    """What a play returned and the waves that it asked for; what it noted goes into ``noted``.

    ``answer`` is given the wish and how many tries at its task came before it; ``words`` are what
    the model says, or are given the question.
    """
    view = MemoryView(
        successes=lambda _shortest: successes,
        groups=lambda: groups,
        principles=lambda: principles,
    )
    work = PartWork(
        round=2,
        tries_per_task=4,
        best_per_task=True,
        temperature=1.0,
        rng=np.random.default_rng(seed),
    )
    waves, before = [], {}

    def became(wish):
        if isinstance(wish, Ask):
            return words(wish) if callable(words) else words
        number = before.get(wish.task_id, 0)
        before[wish.task_id] = number + 1
        return answer(wish, number)

    with view.opened():
        running = play.play(tasks, view, work)
        try:
            wave = next(running)
            while True:
                waves.append(list(wave))
                wave = running.send([became(wish) for wish in wave])
        except StopIteration as over:
            if noted is not None:
                noted.extend(view.noted)
            return over.value, waves
