"""Is it well? What a person who was just woken should look at, worst first.

Invariants:

1. Every concern says what is wrong and what to do, and names the alert whose runbook says more.
2. Nothing is judged from one silo's learning; there is none in the picture.
3. What is planned is no alarm: a run that spends what its plan said is watched from four fifths of
   its cap on, like the alert.

Thresholds are those of the alerts, but a page shows this instant, so it speaks before they fire.

Covered: silos, rounds, budgets, certificates, the audit log, storage. Not covered: whether the
metrics are scraped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from server.states import ACTIVE, RunState, SiloState
from server.status_page.picture import Picture, Release, RunView, SiloView
from server.status_page.words import named, percent, span

__all__ = ["Concern", "Level", "Verdict", "due_share", "judge"]

CERTIFICATE_S: Final = 7 * 86400
DEADLINE_GRACE_S: Final = 60.0
SPENT_SHARE: Final = 0.5
SPENT_SLACK: Final = 1.1
FREE_SHARE: Final = 0.1
DROPOUTS: Final = 2
DROP: Final = 0.1
"""Of a success ratio, below the best that is shown."""
DROP_ERRORS: Final = 2.0
"""And beyond so many standard errors of the difference."""
_NEEDS_SILOS: Final = ACTIVE | {RunState.QUEUED}


class Level(StrEnum):
    """How bad it is."""

    WELL = "well"
    SETUP = "setup"
    """Nothing runs yet; the page says what comes next."""
    WATCH = "watch"
    ALARM = "alarm"


@dataclass(frozen=True, kw_only=True, slots=True)
class Concern:
    """One thing that is not as it should be."""

    level: Level
    what: str
    advice: str
    """What to do, as a sentence; empty where the command says it."""
    command: str
    """What to run; empty where no command helps."""
    alert: str
    """The alert, and with it the page of docs/operations; empty where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """All of it."""

    level: Level
    concerns: tuple[Concern, ...]
    """Worst first."""


def judge(picture: Picture) -> Verdict:
    """Look over a picture."""
    found = [
        *_records(picture),
        *_run(picture),
        *_silos(picture),
        *_dropouts(picture),
        *_certificates(picture),
        *_disk(picture),
    ]
    found.sort(key=lambda concern: concern.level is not Level.ALARM)
    if found:
        return Verdict(level=found[0].level, concerns=tuple(found))
    founded = picture.federation is not None and picture.roster_epoch > 0
    ready = founded and picture.run is not None
    return Verdict(level=Level.WELL if ready else Level.SETUP, concerns=())


def _alarm(alert: str, what: str, advice: str, command: str = "") -> Concern:
    return Concern(level=Level.ALARM, what=what, advice=advice, command=command, alert=alert)


def _watch(alert: str, what: str, advice: str, command: str = "") -> Concern:
    return Concern(level=Level.WATCH, what=what, advice=advice, command=command, alert=alert)


def _records(picture: Picture) -> Iterator[Concern]:
    counted = picture.counted
    if counted.audit_failures or picture.audit is None:
        yield _alarm(
            "ChoraleAuditChainBroken",
            "The audit log is not as it was written, or cannot be read.",
            "Keep the file as it is.",
            "chorale audit verify",
        )
    if counted.audit_head_conflicts:
        yield _alarm(
            "ChoraleAuditHeadConflict",
            "A silo's audit log went back or forked since the coordinator started.",
            "Look for audit_head_conflict.",
            "chorale audit tail",
        )
    if counted.ledger_rollbacks:
        yield _watch(
            "ChoraleLedgerRolledBack",
            "A silo was left out since the coordinator started: its privacy ledger had gone back.",
            "Look for ledger_rolled_back and ask that silo's operator.",
            "chorale audit tail",
        )
    if counted.storage_faults:
        yield _watch(
            "ChoraleStorageFailing",
            f"Disk or database failed {counted.storage_faults} times since the coordinator started"
            " and held a run up.",
            "",
            "chorale doctor",
        )


def _run(picture: Picture) -> Iterator[Concern]:
    run = picture.run
    if run is None:
        return
    state, run_id = run.line.state, run.line.run_id
    if state is RunState.FAILED:
        yield _alarm(
            "",
            f"Run {run_id} has failed: {run.line.error}",
            "Put right what it says and start a new run; its adapters stay.",
        )
    elif state is RunState.PAUSED:
        yield _watch(
            "",
            f"Run {run_id} is paused and waits for an admin"
            + (f": {run.line.error}" if run.line.error else "."),
            "",
            f"chorale run resume {run_id}",
        )
    yield from _phase(picture, run)
    if run.line.state in ACTIVE and run.releases:
        yield from _skips(run.releases)
    if math.isfinite(run.epsilon_spent) and run.epsilon_spent > due_share(run) * run.epsilon_cap:
        yield _watch(
            "ChoraleEpsilonEndsEarly",
            f"{percent(run.epsilon_spent / run.epsilon_cap)} of the run's ε is spent, more than "
            "its rounds so far explain.",
            "When it is used up the rounds that are left are skipped.",
            "chorale budget",
        )
    yield from _success(run)


def due_share(run: RunView) -> float:
    """The share of the ε cap that the rounds so far explain, as in the alert; at most 1.

    ε grows at most with the square root of the rounds.
    """
    at = run.line.round if run.current is None else run.current.round
    return min(1.0, max(SPENT_SHARE, SPENT_SLACK * math.sqrt(at / max(1, run.line.rounds))))


def _phase(picture: Picture, run: RunView) -> Iterator[Concern]:
    current = run.current
    if current is None:
        return
    silent = [one.silo_id for one in current.waited if not one.alive]
    who = f"not heard of: {named(silent)}" if silent else "every silo that it waits for is heard of"
    late_s = picture.at_unix_s - current.deadline_unix_s
    if current.stalled_since_unix_s:
        yield _alarm(
            "ChoraleRoundStalled",
            f"Round {current.round} has been stalled for "
            f"{span(picture.at_unix_s - current.stalled_since_unix_s)}: too few silos are ready; "
            f"{who}.",
            "Reach their operators.",
            "chorale-silo doctor",
        )
    elif current.deadline_unix_s and late_s > DEADLINE_GRACE_S:
        yield _alarm(
            "ChoraleRoundStalled",
            f"{current.phase} is {span(late_s)} past its deadline.",
            "Look at the coordinator's log.",
            f"chorale run watch {run.line.run_id}",
        )
    if not current.strength.spare and picture.roster_silos > current.strength.needed:
        # Below zero too few are there already, which is another concern.
        yield _watch(
            "ChoraleNoSpareSilo",
            f"No spare silo: {current.strength.live} are live and {current.strength.needed} are "
            "needed now. One more that is lost holds the run up.",
            "See who is silent, suspended or sits out.",
            "chorale silo list",
        )
    if current.attempt > 1:
        yield _watch(
            "ChoraleSecAggBelowThreshold",
            f"Round {current.round} is at attempt {current.attempt}: the earlier ones were lost.",
            "Look for attempt_aborted.",
            "chorale audit tail",
        )


def _skips(releases: tuple[Release, ...]) -> Iterator[Concern]:
    closed = [release for release in releases if release.outcome]
    if closed and closed[-1].outcome == "quarantined":
        yield _alarm(
            "ChoraleSumQuarantined",
            f"Honest silos cannot have made the sum of round {closed[-1].round}: it was charged "
            "and not applied.",
            "Pause the run and ask the sites that took part.",
            "chorale audit tail",
        )
    elif closed and closed[-1].outcome == "skipped":
        yield _watch(
            "ChoraleSecAggBelowThreshold",
            f"Round {closed[-1].round} ended without a sum: too few silos stayed to its end.",
            "Look for attempt_aborted, and who was lost.",
            "chorale audit tail",
        )


def _success(run: RunView) -> Iterator[Concern]:
    if run.collapse is not None:
        run_id, fallen = run.line.run_id, run.collapse
        # One concern of it: each environment that dropped would say the same again.
        yield _watch(
            "ChoraleAgentCollapsed",
            f"{fallen.words[0].upper()}{fallen.words[1:]}, and stays there.",
            f"Pause the run; to go back: {fallen.back(run_id)}.",
            f"chorale run pause {run_id}",
        )
        return
    families = {family for release in run.releases for family in release.success}
    for family in sorted(families):
        known = [
            release.success[family]
            for release in run.releases
            if family in release.success and not math.isnan(release.success[family].value)
        ]
        if len(known) < 2:
            continue
        newest, best = known[-1], max(known[:-1], key=lambda figure: figure.value)
        error = math.hypot(newest.error, best.error)
        drop = best.value - newest.value
        if drop > DROP and drop > DROP_ERRORS * error:
            yield _watch(
                "ChoraleSuccessDropped",
                f"Success in {family} is {percent(newest.value)}, and was {percent(best.value)}.",
                "If it lasts, go back to an earlier adapter.",
                f"chorale adapter list {run.line.run_id}",
            )


def _silos(picture: Picture) -> Iterator[Concern]:
    rostered = [silo for silo in picture.silos if silo.state is SiloState.ROSTERED]
    silent = [silo for silo in rostered if not silo.alive]
    run = picture.run
    needed = run.least if run is not None and run.line.state in _NEEDS_SILOS else 0
    # A round that has no quorum otherwise asks those that sit out again.
    spare = [s for s in picture.silos if s.state is SiloState.SITTING_OUT and s.alive]
    left = len(rostered) - len(silent) + len(spare)
    # Not only silence: members that are revoked, gone or suspended are not heard of either.
    out = picture.roster_silos - len(rostered) - len(spare)
    if left < needed:
        yield _alarm(
            "ChoraleSecAggBelowThreshold",
            f"Only {left} of the {needed} silos that a round needs are heard of"
            + (f"; missing: {_names(silent)}" if silent else "")
            + (f"; {out} of the roster may take no part now" if out else "")
            + ".",
            "Reach their operators." if silent else "Reinstate them, or publish another roster.",
            "chorale-silo doctor" if silent else "chorale silo list",
        )
    elif silent:
        yield _watch(
            "ChoraleSiloSilent",
            f"Not heard of: {_names(silent)}."
            + (" The round goes on without them." if needed else ""),
            "Reach their operators.",
            "chorale-silo doctor",
        )


def _dropouts(picture: Picture) -> Iterator[Concern]:
    out = [silo for silo in picture.silos if silo.state is SiloState.SITTING_OUT]
    again = [
        silo
        for silo in picture.silos
        if silo.state is SiloState.ROSTERED and silo.dropouts_in_a_row >= DROPOUTS
    ]
    if out:
        yield _watch(
            "ChoraleSiloDroppingOut",
            f"Left out for some rounds, as it was lost from attempt after attempt: {_names(out)}.",
            "Ask its operator; to let it in before: chorale silo reinstate SILO.",
            "chorale-silo doctor",
        )
    if again:
        yield _watch(
            "ChoraleSiloDroppingOut",
            f"Lost from attempt after attempt: {_names(again)}.",
            "Ask its operator.",
            "chorale-silo doctor",
        )


def _names(silos: list[SiloView]) -> str:
    return named([silo.silo_id for silo in silos])


def _certificates(picture: Picture) -> Iterator[Concern]:
    now = picture.at_unix_s
    takes_part = {SiloState.ROSTERED, SiloState.SITTING_OUT, SiloState.ENROLLED}
    members = [silo for silo in picture.silos if silo.state in takes_part]
    over = [silo for silo in members if silo.certificate_end_unix_s <= now]
    soon = [silo for silo in members if 0 < silo.certificate_end_unix_s - now < CERTIFICATE_S]
    if over:
        yield _alarm(
            "ChoraleCertificateExpiring",
            f"The certificate is over of: {_names(over)}.",
            "Such a silo joins again.",
            "chorale invite FEDERATION SILO",
        )
    if soon:
        yield _watch(
            "ChoraleCertificateExpiring",
            f"The certificate ends within a week of: {_names(soon)}.",
            "A running silo renews by itself; ask its operator.",
            "chorale-silo doctor",
        )
    ends = (
        ("The issuing CA", picture.ca_end_unix_s, "chorale ca rotate"),
        ("The server's certificate", picture.server_certificate_end_unix_s, "chorale doctor"),
    )
    for what, end, command in ends:
        if 0 < end < now + CERTIFICATE_S:
            left = f"ends in {span(end - now)}" if end > now else "is over"
            yield _alarm("ChoraleCertificateExpiring", f"{what} {left}.", "", command)


def _disk(picture: Picture) -> Iterator[Concern]:
    if picture.disk_bytes > 0 and picture.disk_free_bytes < FREE_SHARE * picture.disk_bytes:
        share = percent(picture.disk_free_bytes / picture.disk_bytes)
        yield _watch(
            "ChoraleDiskFilling",
            f"Only {share} of the data directory's disk is free.",
            "Make room: a full disk pauses runs.",
        )
