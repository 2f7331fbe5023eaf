"""The removal test: whether parts keep units apart, tried on units that nobody owns.

A fresh instance cannot stop a part that keeps state in its module or its class. Before a package's
parts run where units are protected, they are run on made-up units with and without one of them, and
in either order; whatever they make of every other unit must be the same bit for bit:

    units a b c  →  what is made of a and of c        (the order of the round)
    units a c    →  the same                          (b removed)
    units c b a  →  the same                          (another order)

Chorale's own parts are held to the same test (``tests/evolution/parts/test_removal.py``).

Covered: plays, credits and objectives that are called as the driver calls them, once a unit.
Not covered: a part that behaves itself while it is tried; that is what the digest of its package in
``policy.toml`` is for. Samplers and gates, which look at units from outside and read what is
public.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from evolution.errors import EvolverSetupError
from evolution.methods.playing import Player, play_all
from evolution.part import Part
from evolution.parts.seam import MemoryView, PartWork
from evolution.rollout.conversation import RenderedEpisode
from evolution.rollout.episodes import EpisodeBatch
from evolution.train.rows import Row
from evolution.trajectory import Ask, Group, Step, Task, Trajectory

__all__ = ["made_up", "require_apart_parts", "what_is_made"]

_TRIES: Final = 4
_ORDERS: Final = (("a", "b", "c"), ("a", "c"), ("c", "b", "a"))


def require_apart_parts(parts: Mapping[str, Part]) -> None:
    """Run the test on a recipe's parts.

    Raises:
        EvolverSetupError: What is made of one unit depends on another, or a part fails.
    """
    try:
        made = [
            {unit: what_is_made(parts, groups) for unit, groups in _in(order).items()}
            for order in _ORDERS
        ]
    except Exception as error:
        raise EvolverSetupError(
            f"the recipe's parts failed on made-up units, so that nobody can say whether they keep "
            f"units apart: {type(error).__name__}"
        ) from error
    for found in made[1:]:
        for unit, digest in found.items():
            if digest != made[0][unit]:
                raise EvolverSetupError(
                    "what the recipe's parts make of one unit depends on other units: they keep "
                    "something between calls, and cannot run where units are protected"
                )


def made_up(unit: str) -> tuple[Group, ...]:
    """The tries at one made-up task: other tokens, rewards and lengths for each unit."""
    seed = int.from_bytes(hashlib.sha256(unit.encode()).digest()[:8], "little")
    rng = np.random.default_rng(seed)
    task = Task(environment="made-up", task_id=seed % 1_000_003, subject=f"made-up {unit}")
    tries = tuple(_try(task, rng, solved=bool(number % 2)) for number in range(_TRIES))
    return (Group(task=task, round=1, trajectories=tries),)


def what_is_made(parts: Mapping[str, Part], groups: Sequence[Group]) -> str:
    """A digest of the episodes, rows and terms that fresh instances make of one unit's tries."""
    tries = [one for group in groups for one in group.trajectories]
    view = MemoryView(
        successes=lambda _shortest: tuple(one for one in tries if one.success),
        groups=lambda: groups,
    )
    played = play_all([_player(parts["play"], tries, view)], _told(tries), _said, apart=False)
    with view.opened():
        kept = [
            replace(group, trajectories=tuple(t for t in played.counted if t.task == group.task))
            for group in groups
        ]
        rows: list[Row] = parts["credit"].make().credit(kept, view, _work())
    digest = hashlib.sha256()
    for one in played.counted:
        digest.update(bytes.fromhex(one.conversation_sha256))
    for row in rows:
        for array in (row.token_ids, row.mask, row.weights, row.logprobs):
            digest.update(array.tobytes())
        digest.update(_terms(parts["objective"], row).tobytes())
    return digest.hexdigest()


def _in(order: Sequence[str]) -> dict[str, tuple[Group, ...]]:
    return {unit: made_up(unit) for unit in order}


def _work() -> PartWork:
    return PartWork(
        round=1,
        tries_per_task=_TRIES,
        best_per_task=True,
        temperature=1.0,
        rng=np.random.default_rng(1),
        rendered=_rendered,
    )


def _rendered(
    instruction: str, observations: Sequence[str], actions: Sequence[str]
) -> RenderedEpisode:
    """What stands for a tokenizer: a token for each letter."""
    asked, answered = [*instruction, *"".join(observations)], [*"".join(actions)]
    return RenderedEpisode(
        token_ids=tuple(ord(letter) % 50 for letter in (*asked, *answered)),
        agent_mask=(*(False,) * len(asked), *(True,) * len(answered)),
    )


def _player(play: Part, tries: Sequence[Trajectory], view: MemoryView) -> Player:
    return Player(
        play=play.make(),
        tasks=[one.task for one in tries],
        places=range(len(tries)),
        view=view,
        work=_work(),
    )


def _told(
    tries: Sequence[Trajectory],
) -> Callable[[Sequence[Task], Sequence[int]], EpisodeBatch]:
    """What stands for the engine: the try of each place, whatever was asked for."""
    return lambda _asked, places: EpisodeBatch(
        tries=tuple(tries[place] for place in places), dropped=0, environment_steps=0
    )


def _said(asks: Sequence[Ask], places: Sequence[int]) -> list[str]:
    """What stands for the model's words."""
    return [f"{one.text[:20]} {place}" for one, place in zip(asks, places, strict=True)]


def _try(task: Task, rng: np.random.Generator, *, solved: bool) -> Trajectory:
    steps = tuple(
        Step(
            observation="",
            action="",
            context_ids=tuple(rng.integers(0, 50, 4).tolist()),
            action_ids=tuple(rng.integers(0, 50, 3).tolist()),
            action_logprobs=tuple((-rng.random(3)).tolist()),
            reward=float(rng.random()),
        )
        for _ in range(int(rng.integers(1, 4)))
    )
    return Trajectory(
        task=task,
        steps=steps,
        final_observation="",
        success=solved,
        adapter_sha256="",
        round=1,
    )


def _terms(objective: Part, row: Row) -> np.ndarray:
    """An objective's terms for a row, under logits that are made of the row's own tokens."""
    import torch

    from evolution.train.objective import RowTensors, TokenOut

    ids = torch.from_numpy(row.token_ids[1:])
    logits = torch.sin(torch.outer(ids + 1.0, torch.arange(64) + 1.0))
    logprob = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, None])[:, 0]
    known = dict.fromkeys(objective.needs, logprob - 0.01)
    about = RowTensors(
        torch.from_numpy(row.mask[1:]),
        torch.from_numpy(row.weights[1:]),
        torch.from_numpy(row.logprobs[1:]),
    )
    out = TokenOut(logprob, logits, known, torch.sin(ids.float()))
    terms: torch.Tensor = objective.make().terms(out, about)
    return terms.detach().numpy()
