"""The rounds of a run in simulated time: whom each asks, who answers, what is then known.

Whom a round asks is decided by ``federation.selection`` from ``Inputs``, as the coordinator does
it, so each decision has its line (``Decided``), and ``chorale-lab replay-decisions`` makes it
again. What no coordinator knows stands in those inputs as who is there:

    answers    those who will answer in time are there, and no one else
    losses     those whom the lab's rule took by their losses are there, and the policy asks all

so what is replayed of these two is the decision among them, and not how they came to be there.

Ordered invariants:

1. A decision is made from the rounds that are over, the facts of now, and nothing that only the
   simulation knows, but for the two above.
2. The run's clock moves by each round's seconds, and by the adviser's before it; rounds follow one
   another at once.
3. ``record`` and ``take_up`` carry everything over, so a run that goes on decides alike.
4. A round that is lost costs time and changes nothing else: nobody uploads, and what silos did in
   it is not kept.

Success in a round's figures is what the sum would say: counts of tries and successes by family,
each with normal noise of ``figure_z`` times what one silo may add, and the standard error of that
(``federation.chain.sums.success_ratios``).

Covered: the above. Not covered: several attempts in a round, stop and diagnosis, epochs that move.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from dp.noise.estimate import Estimate
from federation.advice.conversation import Budget
from federation.advice.proposal import Proposal
from federation.advice.record import AdviceRecord, replay
from federation.chain.sums import success_ratios
from federation.plan.tables import SelectionAdviceSection, SelectionSection
from federation.selection.advised import limits_of, state_of
from federation.selection.decide import ADVISED, Inputs, decide, public_draw
from federation.selection.decided import Decided, why_none
from federation.selection.policies import (
    Choice,
    Counted,
    PastRound,
    PublicFacts,
    PublicHistory,
)
from lab.experiment.errors import StateError
from lab.experiment.orchestration import adviser
from lab.experiment.orchestration.by_loss import SiloLoss, oort, power_of_choice
from lab.experiment.orchestration.consult import Answers, consult
from lab.experiment.orchestration.silos import DAY_S, Profile, Word, answered_after_s, draws, facts
from lab.experiment.orchestration.timing import Timing, timing_of
from lab.experiment.tables import OrchestrationTable
from secagg.descriptor import EPISODES, SUCCESSES
from secagg.parameters import threshold

__all__ = ["BEGINS_UNIX_S", "Begun", "Orchestrator", "Tries"]

BEGINS_UNIX_S: Final = 20_833 * DAY_S
"""When every run begins: midnight, so that hours of the day are those of the clock."""
ROUNDS_TOLD: Final = 16
"""As ``server/run/selection.py``."""
COLLUDING: Final = 1
EXPLORE: Final = 0.2
_COUNTS: Final = 0xC0C7
_FIGURES: Final = 0xF165
_ORACLE: Final = "answers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """What one silo tried in a round."""

    episodes: Mapping[str, int]
    """By family."""
    successes: Mapping[str, int]
    """By family."""

    @property
    def failed(self) -> float:
        """Share of all its tries."""
        tried = sum(self.episodes.values())
        return 1 - sum(self.successes.values()) / tried if tried else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A round whose cohort was chosen, and what becomes of it by the deadline."""

    number: int
    choice: Choice
    deadline_s: int
    """Of this round."""
    answers: Mapping[str, float | None]
    """Of those asked: after how many seconds, or never."""
    timing: Timing
    requests: int
    """To the adviser."""
    tokens: int
    """Of those."""
    is_advised: bool
    """Whether its proposal was taken."""
    liars: int
    """Of those asked."""


@dataclass(kw_only=True, slots=True)
class _Journal:
    """Everything that goes from round to round."""

    now_unix_s: float = float(BEGINS_UNIX_S)
    rounds: list[PastRound] = field(default_factory=list)
    lost_in_a_row: dict[str, int] = field(default_factory=dict)
    losses: dict[str, SiloLoss] = field(default_factory=dict)
    decisions: list[str] = field(default_factory=list)


_JOURNAL: Final = TypeAdapter(_Journal)


class Orchestrator:
    """See the module; one for a run."""

    def __init__(
        self,
        table: OrchestrationTable,
        *,
        run_id: str,
        sha256: str,
        seed: int,
        rounds: int,
        families: Mapping[str, tuple[str, ...]],
        sizes: Mapping[str, int],
        most_tries: int,
        answers: Answers | None = None,
        model: str = adviser.MODEL,
    ) -> None:
        """Begin before the first round.

        Args:
            table: What is simulated.
            run_id: Of the decisions.
            sha256: Of the run, in the place of a plan's; in hexadecimal.
            seed: Of the simulation.
            rounds: Of the run.
            families: Of each silo, by its id, in the order of the silos.
            sizes: Training tasks of each silo.
            most_tries: That one silo makes in a round.
            answers: Who advises; None for the rule.
            model: Its name in the records.
        """
        self._table = table
        self._run_id, self._sha256 = run_id, sha256
        self._seed, self._rounds = seed, rounds
        self._families, self._sizes = dict(families), dict(sizes)
        self._most_tries = most_tries
        self._model = model
        self._answers: Answers = self._by_rule if answers is None else answers
        self._silos = tuple(families)
        self._profiles = Profile.all_of(table, seed, len(self._silos))
        self._journal = _Journal()
        self._begun: Begun | None = None

    @property
    def decisions(self) -> str:
        """A line for each round so far."""
        return "".join(f"{line}\n" for line in self._journal.decisions)

    @property
    def now_unix_s(self) -> float:
        """The simulated clock."""
        return self._journal.now_unix_s

    def record(self) -> bytes:
        """Everything that the next round follows from."""
        return _JOURNAL.dump_json(self._journal)

    def take_up(self, record: bytes) -> None:
        """Go on from what ``record`` gave between two rounds.

        Raises:
            StateError: It is something else.
        """
        try:
            self._journal = _JOURNAL.validate_json(record)
        except ValidationError as error:
            raise StateError(f"it is no journal of rounds: {error.error_count()} problems") from (
                error
            )

    def begin(self, number: int) -> Begun:
        """Choose for a round, from one, and see who is ready."""
        after = self._answer_times(number)
        inputs = self._inputs(number, after)
        record = self._advice(inputs)
        choice = asyncio.run(_decided(inputs, record))
        decided = Decided(
            run_id=self._run_id,
            round=number,
            inputs=inputs.to_json(),
            advice=b"" if record is None else record.encode(),
            choice=choice,
        )
        self._journal.decisions.append(decided.to_line())
        turns = () if record is None else record.turns
        self._journal.now_unix_s += sum(turn.milliseconds for turn in turns) / 1000
        # The adviser's seconds come before the task: who is away then counts, and not before.
        after = self._answer_times(number)
        answers = {silo_id: after[silo_id] for silo_id in choice.silos}
        deadline_s = choice.ready_deadline_s or self._table.ready_deadline_s
        words = dict(zip(self._silos, self._profiles, strict=True))
        self._begun = Begun(
            number=number,
            choice=choice,
            deadline_s=deadline_s,
            answers=answers,
            timing=timing_of(answers, deadline_s=deadline_s, quorum=self._table.quorum),
            requests=len(turns),
            tokens=sum(turn.tokens for turn in turns),
            is_advised=record is not None and isinstance(record.result, Proposal),
            liars=sum(words[silo_id].word is Word.LIES for silo_id in choice.silos),
        )
        return self._begun

    def end(self, begun: Begun, tries: Mapping[str, Tries], *, upload_bytes: int) -> None:
        """Note what a round came to, with the tries and all uploads of those in its sum."""
        timing, journal = begun.timing, self._journal
        success, error = self._figures(begun.number, tries)
        journal.now_unix_s += timing.seconds
        for silo_id in begun.choice.silos:
            late = silo_id not in timing.ready
            journal.lost_in_a_row[silo_id] = (
                journal.lost_in_a_row.get(silo_id, 0) + 1
                if late
                else (0 if tries else journal.lost_in_a_row.get(silo_id, 0))
            )
        for silo_id, one in tries.items():
            journal.losses[silo_id] = SiloLoss(
                loss=one.failed,
                samples=sum(one.episodes.values()),
                seconds=begun.answers[silo_id] or 0.0,
                round=begun.number,
            )
        journal.rounds.append(
            PastRound(
                round=begun.number,
                asked=begun.choice.silos,
                survivors=tuple(sorted(tries)),
                outcome="aggregated" if tries else "skipped",
                seconds=timing.seconds,
                upload_bytes=upload_bytes,
                success=success,
                success_error=error,
            )
        )

    def _answer_times(self, number: int) -> dict[str, float | None]:
        drawn = draws(self._table, self._profiles, self._seed, number)
        return {
            silo_id: answered_after_s(profile, draw, self._journal.now_unix_s)
            for silo_id, profile, draw in zip(self._silos, self._profiles, drawn, strict=True)
        }

    def _inputs(self, number: int, after: Mapping[str, float | None]) -> Inputs:
        table, section = self._table, self._table.selection
        past = PublicHistory(
            rounds=tuple(self._journal.rounds),
            number=number,
            planned=self._rounds,
            now_unix_s=self._journal.now_unix_s,
            ready_deadline_s=table.ready_deadline_s,
        ).newest(ROUNDS_TOLD)
        there = set(self._silos)
        if table.knows == _ORACLE:
            in_time = timing_of(after, deadline_s=table.ready_deadline_s, quorum=table.quorum)
            # Where the round is lost whoever is asked, to know it changes nothing.
            there = set(self._silos) if in_time.is_lost else set(in_time.ready)
        elif table.knows == "losses":
            there, section = set(self._by_losses(past)), SelectionSection(policy="all")
        elif table.draws_count:
            rng = np.random.default_rng([self._seed, _COUNTS, number])
            drawn = int(rng.integers(table.quorum, len(self._silos), endpoint=True))
            section = section.model_copy(update={"count": drawn})
        return Inputs(
            run_id=self._run_id,
            plan_sha256=self._sha256,
            section=section,
            at_least=table.quorum,
            live={s: told for s, told in self._facts(number).items() if s in there},
            past=past,
        )

    def _facts(self, number: int) -> dict[str, PublicFacts]:
        now = self._journal.now_unix_s
        drawn = draws(self._table, self._profiles, self._seed, number)
        return {
            silo_id: PublicFacts(
                families=self._families[silo_id],
                last_seen_unix_s=now,
                lost_in_a_row=self._journal.lost_in_a_row.get(silo_id, 0),
                published=facts(profile, draw, now),
            )
            for silo_id, profile, draw in zip(self._silos, self._profiles, drawn, strict=True)
        }

    def _by_losses(self, past: PublicHistory) -> tuple[str, ...]:
        """Whom the policy takes by losses, as published."""
        section, losses = self._table.selection, self._journal.losses
        counted = Counted(count=section.count or len(self._silos), schedule=section.schedule)
        count = counted.asked(len(self._silos), past, self._table.quorum)
        rng: Random = public_draw(self._run_id, past.number, bytes.fromhex(self._sha256))
        if section.candidates is not None:
            return power_of_choice(
                self._sizes, losses, count=count, candidates=section.candidates, rng=rng
            )
        return oort(
            self._silos,
            losses,
            count=count,
            explore=EXPLORE if section.explore is None else section.explore,
            number=past.number,
            desired_s=self._table.ready_deadline_s,
            rng=rng,
        )

    def _advice(self, inputs: Inputs) -> AdviceRecord | None:
        if inputs.section.policy != ADVISED:
            return None
        section = inputs.section.advice or SelectionAdviceSection()
        budget = Budget(calls=section.calls, tokens=section.tokens, seconds=section.seconds)
        state = state_of(inputs, limits_of(inputs, _least(inputs)))
        return consult(state, budget, self._model, self._answers)

    def _by_rule(self, request: bytes) -> tuple[bytes, int]:
        return adviser.answer(request), round(1000 * self._table.adviser_s)

    def _figures(
        self, number: int, tries: Mapping[str, Tries]
    ) -> tuple[float, float] | tuple[None, None]:
        """Mean success over the families, and its standard error, as a sum would say them."""
        rng = np.random.default_rng([self._seed, _FIGURES, number])
        deviation = self._table.figure_z * self._most_tries
        sums: Counter[str] = Counter()
        for one in tries.values():
            sums.update({f"{EPISODES}{name}": count for name, count in one.episodes.items()})
            sums.update({f"{SUCCESSES}{name}": count for name, count in one.successes.items()})
        names = sorted({name for one in tries.values() for name in one.episodes})
        found = success_ratios(
            {
                f"{kind}{name}": Estimate(
                    mean=sums[f"{kind}{name}"] + deviation * float(rng.standard_normal()),
                    standard_error=deviation,
                )
                for name in names
                for kind in (EPISODES, SUCCESSES)
            }
        )
        known = [ratio for ratio in found.values() if math.isfinite(ratio.standard_error)]
        if not known:
            return None, None
        mean = math.fsum(ratio.mean for ratio in known) / len(known)
        return mean, math.hypot(*(ratio.standard_error for ratio in known)) / len(known)


async def _decided(inputs: Inputs, record: AdviceRecord | None) -> Choice:
    """As ``server/run/selection.py`` and ``server/run/advised.py`` decide."""
    if record is None:
        return await decide(inputs)
    outcome = replay(record)
    if isinstance(outcome, Proposal):
        return await decide(inputs, outcome)
    return await decide(inputs, without=why_none(outcome))


def _least(inputs: Inputs) -> int:
    """The fewest silos that can have a round's sum and lose one, of those who are there."""
    for count in range(inputs.at_least, len(inputs.live)):
        if count - threshold(count, COLLUDING) >= 1:
            return count
    return len(inputs.live)
