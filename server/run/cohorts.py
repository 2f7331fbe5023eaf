"""Who is in the next attempt: the survivors of the step before, or whoever says ready to a task.

Ordered invariants:

1. After a step of a round the next step is open at once to the survivors of the attempt that ended
   and are alive, if they are a quorum: no task, no second word of theirs. They declare the families
   that they were ready with.
2. In every other case a signed task goes to the whole roster, and the round goes on when every silo
   that is alive has said ready or refused, or at the deadline with at least a quorum.
3. Both follow from what is durable, so a coordinator that restarts in between does the same.
4. A silo has said ready or refused, never both; its newest word counts.
5. Who sits out after drop-outs is sent no task and is in no cohort, unless a round has no quorum
   without it.
6. Of silos that reject each other's pair secrets as few as it takes are in no later attempt of the
   run, by all the pairs that it has seen (``secagg/server/pairs.py``). One pair says not which of
   the two lies, and the accused goes; an accuser of two goes itself, and both come back. A restart
   forgets the pairs, which costs an attempt for each again.
7. In a run of suite v2 each task names whom it invites: a round's first task the whole roster, or
   in a run without noise who may still be asked (``server/run/kept_cohort.py``), and every later
   task of the round the same. Who is not invited is sent it too, to verify it and wait; it is not
   asked, waited for or heard. A task is in the store before anybody sees it; a coordinator that
   restarts sends the same again.
8. Where the plan has rounds chosen for (``server/run/selection.py``), a round's first task invites
   the chosen. They are of those who are asked, are there and have not refused the run for good. A
   bisected round is not chosen for: a suspect must be in it.
9. No round can ask more silos than it did. If those who were chosen are no quorum, for good or at
   the deadline, and enough others are there, its step is skipped, so that the next round chooses
   anew; else it waits for them as any round does.

Covered: deadlines, quorum, silos that refuse for good, strangers. Not covered: who sits out
(``server/run/dropouts.py``); who refused a run for good before the coordinator restarted, who may
be chosen once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from federation.chain.groups import groups_of, halves_of
from federation.chain.record import Place
from federation.chain.task import PASSING_REASONS, SURVIVORS_ALREADY_SIGNED, RoundTask
from federation.plan.plan import Plan
from ops.logs.logger import get_logger
from secagg.roster import SignedRoster
from secagg.server.pairs import left_out
from server.audit import AuditEvent
from server.context import RunContext
from server.errors import RunError, WrongRoundError
from server.figures import Phase
from server.run.budget import show_epsilon
from server.run.chain import Chain
from server.run.dropouts import Dropouts
from server.run.kept_cohort import KeptCohort
from server.run.progress import Progress
from server.run.selection import Selection
from server.store.runs import RunRow
from server.store.tasks import TaskRow

__all__ = ["Cohorts", "Ready", "Training"]

log = get_logger(__name__)

CHAIN: Final = "chain"
"""A silo's word for a published chain that is not the one it adopted."""
AHEAD: Final = (
    ". A silo that refuses with 'chain' holds records that this coordinator does not show it: it "
    "was restored from an older backup, or lost records. Restore a newer backup, or start a new "
    "run from the newest adapter"
)

KEPT_OUT: Final = (
    ". {} stay out: without noise, whoever was not in the last sum, for cohorts that vary can be "
    "subtracted (take a mode with noise, or have every site let cohorts vary); and who is "
    "left out because a pair's secret was rejected"
)

Ready = dict[str, tuple[str, ...]]
"""Silo to the environment families that it declares, in ascending order of silo."""


@dataclass(kw_only=True, slots=True)
class Training:
    """A task that is out, and the answers so far."""

    task: RoundTask
    ready: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Silo to the environment families it declares."""
    refused: dict[str, str] = field(default_factory=dict)
    """Silo to its public reason."""

    def report_ready(
        self, silo_id: str, *, adapter_sha256: bytes, families: tuple[str, ...]
    ) -> None:
        """A silo's local work is done.

        Raises:
            WrongRoundError: it started from another adapter.
        """
        if adapter_sha256 != self.task.adapter_sha256:
            raise WrongRoundError("ready for another adapter than the one this task starts from")
        self.refused.pop(silo_id, None)
        self.ready[silo_id] = families

    def refuse(self, silo_id: str, reason: str) -> None:
        """A silo takes no part."""
        self.ready.pop(silo_id, None)
        self.refused[silo_id] = reason

    def unanswered(self, silos: Iterable[str]) -> tuple[str, ...]:
        """Who of these has said neither."""
        return tuple(s for s in silos if s not in self.ready and s not in self.refused)

    def within_reach(self, silos: Sequence[str]) -> tuple[str, ...]:
        """Who of these has not refused for good."""
        refused = self.refused
        return tuple(s for s in silos if s not in refused or refused[s] in PASSING_REASONS)


class Cohorts:
    """Finds the silos of each attempt of one run."""

    def __init__(
        self,
        *,
        row: RunRow,
        plan: Plan,
        roster: SignedRoster,
        context: RunContext,
        chain: Chain,
        progress: Progress,
    ) -> None:
        self.training: Training | None = None
        """The task that is out; None while none is."""
        self._dropouts = Dropouts(chain.head.run_id, plan, context)
        self.sitting_out = self._dropouts.sitting_out(chain.next_place.round)
        """Who is asked for nothing now (``server/run/dropouts.py``)."""
        self._kept = KeptCohort(row.run_id, plan, context.store)
        self._selection = Selection(row=row, plan=plan, roster=roster, context=context)
        self._hybrid = row.is_hybrid
        self._plan = plan
        self._roster = roster
        self._silos = tuple(entry.silo_id for entry in roster.roster.entries)
        self._ready_deadline_s = plan.rounds.ready_deadline_s
        self._quorum = plan.rounds.ready_quorum(plan.secure_aggregation.n_min)
        self._context = context
        self._chain = chain
        self._progress = progress
        self._suspects: tuple[str, ...] = ()
        self._declined: set[str] = set()
        """Who refused for good since the coordinator took up the run: not a reason of one step."""
        self._rejected: frozenset[tuple[str, str]] = frozenset()
        """Each (accused, accuser) of this run since the coordinator took it up."""
        self.kept_out = self._kept_out()
        """Who may take no part now, in ascending order.

        In a run without noise who was not in the last sum, and who is left out for rejected pairs.
        """

    @property
    def asked(self) -> tuple[str, ...]:
        """Who is asked for work: the roster without those who sit out or are kept out.

        While a task is out that names whom it invites, those of them whom it does.
        """
        return tuple(silo_id for silo_id in self._askable if self._is_invited(silo_id))

    @property
    def _askable(self) -> tuple[str, ...]:
        out = self.sitting_out.union(self.kept_out)
        return tuple(silo_id for silo_id in self._silos if silo_id not in out)

    def _is_invited(self, silo_id: str) -> bool:
        """Whether the task that is out, if one is, invites a silo; one of suite v1 invites all."""
        invited = () if self.training is None else self.training.task.invited
        return not invited or silo_id in invited

    @property
    def counted_on(self) -> tuple[str, ...]:
        """Who may be in the next attempt: whoever is asked, or would be if there were too few.

        Who refused the task that is out for good is not.
        """
        training = self.training
        may = (*self.asked, *self._may_be_called_back())
        return may if training is None else training.within_reach(may)

    @property
    def ready_deadline_s(self) -> int:
        """How long a task of the open round waits for its silos."""
        chosen = self._selection.made(self._chain.next_place.round)
        return (None if chosen is None else chosen.ready_deadline_s) or self._ready_deadline_s

    @property
    def task(self) -> RoundTask | None:
        """The newest task of the open round, which a descriptor of suite v2 names; None in v1."""
        sent = self._sent() if self._hybrid else ()
        return sent[-1].task if sent else None

    def is_told(self, silo_id: str) -> bool:
        """Whether a silo is shown the task that is out: whoever is asked or, by it, is not."""
        if self.training is None:
            return False
        return silo_id in self.asked or not self._is_invited(silo_id)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Who has not answered the task that is out."""
        return () if self.training is None else self.training.unanswered(self.asked)

    # Messages of silos ----------------------------------------------------------------------------

    def report_ready(
        self, silo_id: str, *, place: Place, adapter_sha256: bytes, families: tuple[str, ...]
    ) -> None:
        """A silo's local work is done."""
        self._require_training(silo_id, place).report_ready(
            silo_id, adapter_sha256=adapter_sha256, families=families
        )
        self._declined.discard(silo_id)
        self._context.changed.notify()

    def refuse(self, silo_id: str, *, place: Place, reason: str) -> None:
        """A silo takes no part."""
        training = self._require_training(silo_id, place)
        if training.refused.get(silo_id) == reason:
            return
        training.refuse(silo_id, reason)
        if reason not in PASSING_REASONS and reason != SURVIVORS_ALREADY_SIGNED:
            self._declined.add(silo_id)
        self._context.audit.append(
            AuditEvent.SILO_REFUSED,
            run=training.task.run_id,
            round=place.round,
            step=place.step,
            silo=silo_id,
            reason=reason,
        )
        self._context.changed.notify()

    def _require_training(self, silo_id: str, place: Place) -> Training:
        if silo_id not in self._silos:
            # Enrolled silos outside the roster have no say in a round.
            raise WrongRoundError(f"{silo_id} is not in the roster of this run")
        if silo_id in self.sitting_out:
            raise WrongRoundError(f"{silo_id} sits out: it was lost from too many attempts")
        if silo_id in self.kept_out:
            raise WrongRoundError(f"{silo_id} may take no part in this release")
        training = self.training
        if training is None or place != (training.task.round, training.task.step):
            raise WrongRoundError(f"{place} is not in training")
        if not self._is_invited(silo_id):
            raise WrongRoundError(f"{silo_id} is not invited to {place}")
        return training

    # Gathering ------------------------------------------------------------------------------------

    def halve(self, suspects: tuple[str, ...]) -> None:
        """Gather for two halves between which these are split; for the plan's sums if none are."""
        self._suspects = suspects

    def carried_over(self) -> Ready | None:
        """Who goes on from the step before without a word; None where a task is needed."""
        head = self._chain.head
        if self._chain.next_place.step == 0:
            return None
        ended = self._context.store.aggregations.newest(head.run_id, head.round, head.step)
        if ended is None:
            return None
        self.sitting_out = self._dropouts.sitting_out(self._chain.next_place.round)
        self.kept_out = self._kept_out()
        alive = {
            silo_id: ended.families[silo_id]
            for silo_id in ended.survivors
            if silo_id in self.asked and self._context.liveness.alive(silo_id)
        }
        return alive if len(alive) >= self._quorum else None

    def chosen(self, round_number: int) -> bool:
        """Whether it is settled already whom a round asks, by a choice that is stored."""
        return self._selection.made(round_number) is not None

    async def gather(self, attempt_number: int) -> Ready | None:
        """Send a task and wait; None when so many refused for good that the step is skipped.

        It is skipped as well where those who were chosen are too few and others are there.

        Halves are waited for once, up to the deadline, and those who sit out are asked as well.

        Raises:
            RunError: the quorum is out of reach; says who refused and why.
        """
        everyone, again = bool(self._suspects), self._unanswered_task(attempt_number)
        while True:
            self._choose(everyone=everyone)
            if again is None:
                again = self._new_task(attempt_number, await self._invitable())
            training = Training(task=again)
            again = None
            self.training = training
            await self._answers(training, attempt_number)
            ready = self._ready(training)
            if self._suffices(ready):
                self._dropouts.missed_training(self._chain.next_place, attempt_number, self._late())
                return ready
            if self._suspects:
                return None
            # Before a round stalls or a run ends for want of silos, those who sit out are asked.
            everyone = bool(self._may_be_called_back())
            if not everyone and self._is_lost(training):
                return None
            if self._context.clock() >= training.task.ready_deadline_unix_s:
                self._note_stalled(training.task)

    async def _answers(self, training: Training, attempt_number: int) -> None:
        """Wait for the answers to a task: until they are enough, never can be, or its deadline."""
        deadline = training.task.ready_deadline_unix_s
        self._progress.enter(Phase.TRAINING, deadline, attempt_number)
        # Under record_local a training is charged before it begins.
        show_epsilon(self._plan, self._chain.head.run_id, self._context)
        while self._context.clock() < deadline:
            if not self._late() and self._suffices(self._ready(training)):
                break
            if self._out_of_reach(training):
                break
            await self._context.changed.wait(1.0)
        self._progress.leave()

    def _is_lost(self, training: Training) -> bool:
        """Whether a step that has no quorum is skipped, so that its task is not sent again.

        Raises:
            RunError: no quorum can be reached in the run; says who refused and why.
        """
        if self._others_would_do(training):
            why = "too few of those who were chosen, and others would do: it is skipped"
            self._note_stalled(training.task, reason=why)
            return True
        if self._suffices(training.within_reach(self.asked)):
            return False
        if SURVIVORS_ALREADY_SIGNED in training.refused.values():
            return True
        reasons = ", ".join(f"{s}: {r}" for s, r in sorted(training.refused.items()))
        ahead = CHAIN in training.refused.values()
        raise RunError(
            f"{self._chain.next_place} cannot reach its quorum of {self._quorum}: {reasons}"
            + (AHEAD if ahead else "")
            + (KEPT_OUT.format(", ".join(self.kept_out)) if self.kept_out else "")
        )

    def _note_stalled(self, task: RoundTask, **details: str) -> None:
        self._context.audit.append(
            AuditEvent.ROUND_STALLED,
            run=task.run_id,
            round=task.round,
            step=task.step,
            **details,
        )

    def by_group(self, ready: Ready) -> dict[int, Ready]:
        """Who is ready in each group or half that is a quorum, by part, in order."""
        found = {}
        for part, group in enumerate(self._groups()):
            members = {silo_id: ready[silo_id] for silo_id in group if silo_id in ready}
            if len(members) >= self._quorum:
                found[part] = members
        return found

    def _suffices(self, silo_ids: Collection[str]) -> bool:
        """Whether so many can open a release; with groups or halves, whether enough of them can."""
        if self._plan.groups == 1 and not self._suspects:
            return len(silo_ids) >= self._quorum
        among = frozenset(silo_ids)
        open_groups = [g for g in self._groups() if len(among.intersection(g)) >= self._quorum]
        return len(open_groups) >= (2 if self._suspects else self._plan.least_groups)

    def _groups(self) -> tuple[tuple[str, ...], ...]:
        task = self.task
        if task is None:
            return ()
        if self._suspects:
            return halves_of(
                task.invited,
                self._suspects,
                run_id=task.run_id,
                round_number=task.round,
                roster_sha256=task.roster_sha256,
            )
        return groups_of(
            task.invited,
            self._plan.groups,
            run_id=task.run_id,
            round_number=task.round,
            roster_sha256=task.roster_sha256,
        )

    def _new_task(self, attempt_number: int, invitable: Collection[str]) -> RoundTask:
        """A task that silos have not seen, durable before they do."""
        deadline = int(self._context.clock()) + self.ready_deadline_s
        invited: tuple[str, ...] = ()
        if self._hybrid:
            invited = tuple(sorted(frozenset(self._silos).intersection(invitable)))
        chosen = self._selection.made(self._chain.next_place.round) if self._hybrid else None
        task = self._chain.sign_task(
            self._roster,
            deadline,
            invited=invited,
            local_epochs=(None if chosen is None else chosen.local_epochs) or 0,
        )
        if self._hybrid:
            self._context.store.tasks.put(TaskRow(task=task, attempt=attempt_number))
        return task

    async def _invitable(self) -> frozenset[str]:
        """Whom the next task of the round may invite; a choice is durable when this returns.

        Silos accept no task that invites more than any before it in the round did: one that left
        the roster between two steps stays out though it has joined again.
        """
        before = [row.task.invited for row in self._sent()] if self._hybrid else []
        if before:
            return frozenset(before[0]).intersection(*before[1:])
        everybody, number = self._everybody(), self._chain.next_place.round
        if not self._selection.chooses or self._suspects:
            return everybody
        choice = await self._selection.make(number, self._there(), everybody)
        return frozenset(choice.silos)

    def _everybody(self) -> frozenset[str]:
        """Whom a round's first task invites; halves are drawn of those who may answer it."""
        kept, barred = self._kept.of(self._silos), self._context.liveness.barred
        return frozenset(s for s in kept if not (self._suspects and barred(s)))

    def _there(self) -> frozenset[str]:
        """Who may be chosen: whoever may be asked, is there, and has not refused for good."""
        alive = self._context.liveness.alive
        return frozenset(s for s in self._askable if alive(s) and s not in self._declined)

    def _others_would_do(self, training: Training) -> bool:
        """Whether those who were chosen are too few, and another choice may have enough.

        Where they are too few for good, whoever has not refused counts; at the deadline whoever is
        there, and who said that it comes later is waited for as in any round.
        """
        if not self.chosen(training.task.round):
            return False
        if not self._suffices(training.within_reach(self.asked)):
            willing = frozenset(self._askable) - self._declined
            return len(willing) >= self._selection.at_least
        coming = frozenset(self._ready(training)) | {
            silo_id for silo_id, why in training.refused.items() if why in PASSING_REASONS
        }
        others = frozenset(s for s in self._there() if not self._is_invited(s))
        return not self._suffices(coming) and len(others | coming) >= self._selection.at_least

    def _may_be_called_back(self) -> tuple[str, ...]:
        """Who sits out and is invited to the task that is out."""
        return tuple(silo_id for silo_id in self.sitting_out if self._is_invited(silo_id))

    def _unanswered_task(self, attempt_number: int) -> RoundTask | None:
        """The task that was out when the coordinator stopped; None if none was, or it is late."""
        now, place, roster = self._context.clock(), self._chain.next_place, self._roster.roster
        for row in self._sent() if self._hybrid else ():
            task = row.task
            here = (task.round, task.step) == place and row.attempt == attempt_number
            same = task.roster_sha256 == roster.sha256
            if here and same and task.ready_deadline_unix_s > now:
                return task
        return None

    def _sent(self) -> tuple[TaskRow, ...]:
        head, place = self._chain.head, self._chain.next_place
        return self._context.store.tasks.of_round(head.run_id, place.round)

    def note_rejected(self, pairs: Collection[tuple[str, str]]) -> None:
        """Keep an attempt's (accused, accuser): the two of a pair cannot be in one sum."""
        self._rejected = self._rejected.union(pairs)

    def _left_out(self) -> frozenset[str]:
        """As few silos as are in all pairs of the run: who accuses a second one goes itself.

        Where more silos accuse or are accused than may collude, whoever accused goes.
        """
        found = left_out(sorted(self._rejected), self._roster.roster.colluding)
        if found is None:
            return frozenset(accuser for _, accuser in self._rejected)
        return frozenset(found)

    def _kept_out(self) -> tuple[str, ...]:
        kept = self._kept.of(self._silos) - self._left_out()
        return tuple(sorted(frozenset(self._silos) - kept))

    def _choose(self, *, everyone: bool) -> None:
        """Say who is asked: all but those who sit out or are kept out.

        Those who sit out are asked as well if everyone is needed.
        """
        place = self._chain.next_place
        kept_out = self._kept_out()
        if kept_out != self.kept_out:
            log.warning(
                "silos_kept_out",
                run=self._chain.head.run_id,
                round=place.round,
                names=list(kept_out),
            )
        self.kept_out = kept_out
        out = self._dropouts.sitting_out(place.round)
        if out and everyone:
            # Lost again they cost a phase; a round that cannot open costs everybody its whole
            # deadline, again and again.
            self._dropouts.call_back(place, out)
            out = frozenset()
        self.sitting_out = out

    def _out_of_reach(self, training: Training) -> bool:
        """Whether waiting brings no quorum of those who are asked.

        Silence may be over in a minute, and is waited for; but not while others sit out.
        """
        if not self._suffices(training.within_reach(self.asked)):
            return True
        alive = self._context.liveness.alive
        there = [s for s in self.asked if alive(s) or s in training.ready]
        return bool(self._may_be_called_back()) and not self._suffices(there)

    def _late(self) -> tuple[str, ...]:
        """Who is there and has not answered the task that is out."""
        return tuple(s for s in self.unanswered if self._context.liveness.alive(s))

    def _ready(self, training: Training) -> Ready:
        """Who said ready and may take part still: a silo may be suspended after its word."""
        barred = self._context.liveness.barred
        return {s: training.ready[s] for s in sorted(training.ready) if not barred(s)}
