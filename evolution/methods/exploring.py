"""Exploring: a round's tries, played as the recipe's play wants them, and every one remembered.

Where units are protected each has a play of its own, with its own tries, its own part of the memory
and its own random stream; else one play has everything.

Covered: one local epoch's tries. Not covered: which tasks they are at, and what becomes of them
(``evolution/methods/recipe.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dp.config import PrivacySpec
from dp.steps.units import UnitId
from evolution.envs.environment import Environment
from evolution.errors import EvolveError
from evolution.memory.memory import Memory
from evolution.memory.principles import Principles
from evolution.methods.evolver import StepWork, Work
from evolution.methods.noted import Noted
from evolution.methods.playing import Played, Player, play_all
from evolution.methods.population import UnitMemory, remember, unit_of
from evolution.methods.protection import shares_batch, wave_size
from evolution.methods.streams import Stream, round_rng, round_seed
from evolution.part import Part
from evolution.parts.seam import MemoryView, PartWork
from evolution.principle import Principle
from evolution.rollout.asking import say
from evolution.rollout.conversation import ChatFormat
from evolution.rollout.engine import RolloutEngine
from evolution.rollout.episodes import EpisodeBatch, run_episodes
from evolution.trajectory import Ask, Task

__all__ = ["NOTHING_PLAYED", "Explorer", "part_work", "whole_memory"]

NOTHING_PLAYED = Played(counted=(), kept=(), dropped=0, environment_steps=0)


def part_work(
    work: Work | StepWork,
    stream: Stream,
    *,
    chat: ChatFormat,
    epoch: int = 0,
    unit: UnitId | None = None,
) -> PartWork:
    """What a part is told of a round, with its own random stream."""
    settings = work.settings
    return PartWork(
        round=work.round,
        tries_per_task=settings.tries_per_task,
        best_per_task=settings.best_per_task,
        temperature=settings.temperature,
        rng=round_rng(work, stream, epoch=epoch, unit=unit),
        rendered=chat.render,
    )


def whole_memory(
    memory: Memory, work: Work, *, principles: Callable[[], Sequence[Principle]] = tuple
) -> MemoryView:
    """Everything of the plan's window, for parts that may see the silo."""
    settings = work.settings
    return MemoryView(
        successes=lambda shortest: memory.select(
            round_index=work.round,
            window=settings.window,
            best_per_task=shortest,
            use_expert=settings.use_expert,
        ),
        groups=lambda: memory.groups(round_index=work.round, window=settings.window),
        demonstrations=lambda: memory.experts() if settings.use_expert else (),
        principles=principles,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Explorer:
    """What a silo explores with."""

    engine: RolloutEngine
    memory: Memory
    play: Part
    dtype: str
    """Of the base's weights."""
    make_environment: Callable[[str], Environment]
    principles: Principles | None = None
    """Where the play keeps some."""

    def explore(
        self,
        work: Work,
        tasks: Sequence[Task],
        adapter: Mapping[str, np.ndarray],
        identity: str,
        *,
        spec: PrivacySpec | None = None,
        epoch: int,
    ) -> Played:
        """Play the tasks, a task as often as it stands there, and remember every try.

        The spec protects units; None where none is protected.

        Raises:
            EvolveError: Another adapter than the round's played.
            PartError: The play did what no play may do, and units are not apart.
        """
        if not tasks:
            return NOTHING_PLAYED
        noted = Noted(self.principles, spec)
        self.memory.explore(tasks, round_index=work.round, adapter_sha256=identity)
        noted.begin(work.round, epoch=epoch)
        self.engine.load_adapter(identity, adapter)
        settings, together = work.settings, shares_batch(spec, self.dtype)
        at_once = wave_size(settings, spec, self.dtype)

        def tries(asked: Sequence[Task], places: Sequence[int]) -> EpisodeBatch:
            return run_episodes(
                self.engine,
                asked,
                keys=places,
                temperature=settings.temperature,
                seed=round_seed(work, Stream.EXPLORE, epoch=epoch),
                max_new_tokens=settings.max_new_tokens,
                batch_size=at_once,
                round_index=work.round,
                try_s=None if spec is None else settings.try_s,
                make_environment=self.make_environment,
                apart=not together,
                max_tokens=settings.max_sequence_tokens,
            )

        def words(asks: Sequence[Ask], places: Sequence[int]) -> list[str]:
            return say(
                self.engine,
                asks,
                places,
                temperature=settings.temperature,
                seed=round_seed(work, Stream.ASK, epoch=epoch),
                batch_size=at_once if together else 1,
            )

        of_units = self._players(work, tasks, spec, noted, epoch=epoch)
        players = list(of_units.values())
        played = play_all(players, tries, words, apart=spec is not None)
        if any(t.adapter_sha256 != identity for t in played.kept):
            raise EvolveError("episodes were not played with the round's released adapter")
        remember(self.memory, played.kept)
        noted.keep(of_units, round_index=work.round)
        return played

    def _players(
        self,
        work: Work,
        tasks: Sequence[Task],
        spec: PrivacySpec | None,
        noted: Noted,
        *,
        epoch: int,
    ) -> dict[UnitId | None, Player]:
        """One play for everything, of no unit, or where units are apart one for each of them."""
        if spec is None:
            return {
                None: Player(
                    play=self.play.make(),
                    tasks=tasks,
                    places=range(len(tasks)),
                    view=whole_memory(self.memory, work, principles=noted.of(None)),
                    work=part_work(work, Stream.PLAY, chat=self.engine.chat, epoch=epoch),
                )
            }
        places: dict[UnitId, list[int]] = {}
        for place, task in enumerate(tasks):
            places.setdefault(unit_of(task, spec.unit), []).append(place)
        memory = UnitMemory(
            self.memory, round_index=work.round, settings=work.settings, unit=spec.unit
        )
        return {
            unit: Player(
                play=self.play.make(),
                tasks=[tasks[place] for place in own],
                places=own,
                view=memory.view(unit, principles=noted.of(unit)),
                work=part_work(work, Stream.PLAY, chat=self.engine.chat, unit=unit),
            )
            for unit, own in places.items()
        }
