"""Is it well? Each concern alone, and none where there is nothing to be concerned about."""

import math
from dataclasses import replace

import pytest

from server.figures import Phase, RoundFigures
from server.run.strength import Strength
from server.states import RunState, SiloState
from server.status_page.picture import Figure, Release
from server.status_page.verdict import CERTIFICATE_S, Level, judge
from tests.kit.server import status_page_samples as samples

NOW, DAY_S = samples.NOW, samples.DAY_S


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    made = samples.in_a_run(tmp_path_factory.mktemp("verdict"))
    yield made.observer.look(releases=50)
    made.close()


def spent(picture, share):
    """Of the epsilon that the rounds so far explain, by the rule of the alert."""
    run = picture.run
    due = 1.1 * math.sqrt(run.current.round / run.line.rounds)
    assert 0.5 < due < 0.99
    return share * due * run.epsilon_cap


def alerts(picture):
    return [concern.alert for concern in judge(picture).concerns]


def with_run(picture, **changes):
    return replace(picture, run=replace(picture.run, **changes))


def with_current(picture, **changes):
    return with_run(picture, current=replace(picture.run.current, **changes))


def with_silo(picture, index, **changes):
    silos = list(picture.silos)
    silos[index] = replace(silos[index], **changes)
    return replace(picture, silos=tuple(silos))


def counting(picture, **changes):
    return replace(picture, counted=replace(picture.counted, **changes))


def test_a_run_that_goes_on_is_well(picture):
    assert judge(picture) == replace(judge(picture), level=Level.WELL, concerns=())


@pytest.mark.parametrize(
    ("change", "alert", "level"),
    [
        (lambda p: counting(p, audit_failures=1), "ChoraleAuditChainBroken", Level.ALARM),
        (lambda p: replace(p, audit=None), "ChoraleAuditChainBroken", Level.ALARM),
        (lambda p: counting(p, audit_head_conflicts=1), "ChoraleAuditHeadConflict", Level.ALARM),
        (lambda p: counting(p, ledger_rollbacks=1), "ChoraleLedgerRolledBack", Level.WATCH),
        (lambda p: counting(p, storage_faults=3), "ChoraleStorageFailing", Level.WATCH),
        (
            lambda p: with_current(p, stalled_since_unix_s=NOW - 9),
            "ChoraleRoundStalled",
            Level.ALARM,
        ),
        (lambda p: with_current(p, deadline_unix_s=NOW - 61), "ChoraleRoundStalled", Level.ALARM),
        (lambda p: with_current(p, attempt=2), "ChoraleSecAggBelowThreshold", Level.WATCH),
        (
            lambda p: with_run(p, epsilon_spent=spent(p, 1.01)),
            "ChoraleEpsilonEndsEarly",
            Level.WATCH,
        ),
        (lambda p: with_silo(p, 0, alive=False), "ChoraleSiloSilent", Level.WATCH),
        (
            lambda p: with_silo(p, 0, certificate_end_unix_s=NOW + 6 * DAY_S),
            "ChoraleCertificateExpiring",
            Level.WATCH,
        ),
        (
            lambda p: with_silo(p, 0, certificate_end_unix_s=NOW - 1),
            "ChoraleCertificateExpiring",
            Level.ALARM,
        ),
        (
            lambda p: replace(p, ca_end_unix_s=NOW + DAY_S),
            "ChoraleCertificateExpiring",
            Level.ALARM,
        ),
        (
            lambda p: replace(p, server_certificate_end_unix_s=NOW - 1),
            "ChoraleCertificateExpiring",
            Level.ALARM,
        ),
        (
            lambda p: replace(p, disk_free_bytes=9, disk_bytes=100),
            "ChoraleDiskFilling",
            Level.WATCH,
        ),
    ],
)  # fmt: skip
def test_each_concern_alone(picture, change, alert, level):
    verdict = judge(change(picture))
    (concern,) = verdict.concerns
    assert (concern.alert, concern.level, verdict.level) == (alert, level, level)
    assert concern.what
    assert concern.advice or concern.command


@pytest.mark.parametrize(
    "change",
    [
        lambda p: with_current(p, deadline_unix_s=NOW - 59),
        lambda p: with_current(p, deadline_unix_s=0),
        lambda p: with_run(p, epsilon_spent=spent(p, 0.99)),
        lambda p: with_run(p, epsilon_spent=math.inf),
        lambda p: with_silo(p, 0, certificate_end_unix_s=NOW + CERTIFICATE_S + 1),
        lambda p: replace(p, server_certificate_end_unix_s=0),
        lambda p: replace(p, disk_free_bytes=0, disk_bytes=0),
    ],
)
def test_just_short_of_each_there_is_none(picture, change):
    assert alerts(change(picture)) == []


def test_a_run_without_a_spare_silo_is_watched(picture):
    (concern,) = judge(with_current(picture, strength=Strength(live=4, needed=4))).concerns
    assert concern.level is Level.WATCH
    assert concern.what.startswith("No spare silo: 4 are live and 4 are needed now.")
    for strength in (Strength(live=5, needed=4), Strength(live=3, needed=4)):
        assert judge(with_current(picture, strength=strength)).concerns == ()
    assert judge(with_run(picture, current=None)).concerns == ()
    everybody = Strength(live=picture.roster_silos, needed=picture.roster_silos)
    every = with_current(picture, strength=everybody)
    assert judge(every).concerns == ()


def test_too_few_silos_are_worse_than_a_silent_one(picture):
    silent = picture
    for index in range(2):
        silent = with_silo(silent, index, alive=False)
    assert alerts(silent) == ["ChoraleSiloSilent"]
    silent = with_silo(silent, 2, alive=False)
    (concern,) = judge(silent).concerns
    assert (concern.alert, concern.level) == ("ChoraleSecAggBelowThreshold", Level.ALARM)
    assert "Only 2 of the 3 silos" in concern.what
    assert "hospital-d, hospital-a, hospital-b" in concern.what
    # Without a run nothing is at stake yet.
    idle = with_run(silent, current=None)
    idle = with_run(idle, line=replace(idle.run.line, state=RunState.FINISHED))
    assert alerts(idle) == ["ChoraleSiloSilent"]


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.QUEUED])
def test_a_roster_that_cannot_fill_the_run_is_an_alarm_though_nobody_is_silent(picture, state):
    """Revoked, suspended and gone silos are not silent, and a round waits for them in vain."""
    line = replace(picture.run.line, state=state)
    gone = with_run(picture, line=line)
    for index, out in enumerate((SiloState.REVOKED, SiloState.SUSPENDED)):
        gone = with_silo(gone, index, state=out, alive=False)
    assert alerts(gone) == []
    gone = with_silo(gone, 2, state=SiloState.LEFT, alive=False)
    (concern,) = judge(gone).concerns
    assert (concern.alert, judge(gone).level) == ("ChoraleSecAggBelowThreshold", Level.ALARM)
    assert concern.what == (
        "Only 2 of the 3 silos that a round needs are heard of; 3 of the roster may take no part "
        "now."
    )
    assert concern.command == "chorale silo list"


def test_a_silo_that_is_lost_again_and_again_is_watched(picture):
    lost = with_silo(picture, 0, dropouts_in_a_row=2)
    assert alerts(lost) == ["ChoraleSiloDroppingOut"]
    assert alerts(with_silo(picture, 0, dropouts_in_a_row=1)) == []
    out = with_silo(picture, 0, dropouts_in_a_row=3, state=SiloState.SITTING_OUT)
    (concern,) = judge(out).concerns
    assert (concern.alert, concern.level) == ("ChoraleSiloDroppingOut", Level.WATCH)
    assert picture.silos[0].silo_id in concern.what
    assert "chorale silo reinstate SILO" in concern.advice


def test_a_silo_that_may_take_no_part_concerns_nobody(tmp_path):
    made = samples.in_a_run(tmp_path)
    made.enrol("gone", seen_s=None, certificate_s=-DAY_S, left=True)
    made.enrol("barred", seen_s=None, certificate_s=-DAY_S, revoked=True)
    made.enrol("out", seen_s=None, certificate_s=-DAY_S, suspended=True)
    assert alerts(made.observer.look(releases=50)) == []
    made.close()


def test_a_failed_run_is_an_alarm_with_its_reason_and_a_paused_one_is_watched(picture):
    def ended(state, error):
        line = replace(picture.run.line, state=state, error=error)
        return judge(with_run(picture, line=line, current=None))

    failed = ended(RunState.FAILED, "the disk is full")
    assert failed.level is Level.ALARM
    assert "has failed: the disk is full" in failed.concerns[0].what
    paused = ended(RunState.PAUSED, "")
    assert (paused.level, paused.concerns[0].command) == (
        Level.WATCH, "chorale run resume maze-and-wordle-4f2a",
    )  # fmt: skip
    for state in (RunState.FINISHED, RunState.ABORTED, RunState.QUEUED):
        assert ended(state, "").level is Level.WELL


def test_a_skipped_round_is_watched_until_the_next_sum(picture):
    skipped = [release for release in picture.run.releases if release.outcome == "skipped"]
    assert skipped
    assert alerts(picture) == []
    last = replace(skipped[0], round=99)
    assert alerts(with_run(picture, releases=(*picture.run.releases, last))) == [
        "ChoraleSecAggBelowThreshold"
    ]


def test_a_quarantined_round_is_an_alarm_until_the_next_sum(picture):
    last = replace(picture.run.releases[-1], round=99, outcome="quarantined")
    spoiled = with_run(picture, releases=(*picture.run.releases, last))
    assert alerts(spoiled) == ["ChoraleSumQuarantined"]
    assert judge(spoiled).level is Level.ALARM
    after = replace(last, round=100, outcome="aggregated")
    assert alerts(with_run(picture, releases=(*spoiled.run.releases, after))) == []


def success(*values):
    return tuple(
        Release(
            round=number,
            step=0,
            attempts=1,
            outcome="aggregated",
            spans=(),
            success={"maze": Figure(value=value, error=error)},
            agreement=Figure(value=math.nan, error=math.nan),
            heterogeneity=Figure(value=math.nan, error=math.nan),
        )
        for number, (value, error) in enumerate(values, 1)
    )


@pytest.mark.parametrize(
    ("values", "dropped"),
    [
        ([(0.6, 0.02), (0.45, 0.02)], True),
        ([(0.6, 0.02), (0.45, 0.02), (0.59, 0.02)], False),
        # Beyond a tenth, and within what the noise would do.
        ([(0.6, 0.1), (0.45, 0.1)], False),
        # Beyond the noise, and less than a tenth.
        ([(0.6, 0.001), (0.55, 0.001)], False),
        ([(0.6, 0.02), (math.nan, math.inf)], False),
        ([(0.6, 0.02)], False),
    ],
)
def test_success_that_dropped_beyond_its_noise(picture, values, dropped):
    found = alerts(with_run(picture, releases=success(*values)))
    assert found == (["ChoraleSuccessDropped"] if dropped else [])


def test_an_agent_that_collapsed_is_one_concern_with_the_way_back(tmp_path):
    """Of the whole run and not of the rounds that are shown, and for as long as it is driven."""
    made = samples.in_a_run(tmp_path)
    row, values = made.driver.row, (0.41, 0.40, 0.03, 0.02)
    made.driver.finished = [
        RoundFigures(round=number, outcome="aggregated", success={"maze": (value, 0.02)})
        for number, value in enumerate(values, 1)
    ]
    seen = replace(made.observer.look(releases=1), at_unix_s=NOW)
    (found,) = judge(with_run(seen, releases=success((0.41, 0.02), (0.02, 0.02)))).concerns
    assert (found.level, found.alert) == (Level.WATCH, "ChoraleAgentCollapsed")
    assert found.what == (
        "Success fell from 41.0 ± 2.0 % in round 1 to 2.0 ± 2.0 % in round 4, and stays there."
    )
    assert f"chorale adapter rollback {row.run_id} --to-round 1." in found.advice
    assert found.command == f"chorale run pause {row.run_id}"
    text = made.html()
    assert "<code>ChoraleAgentCollapsed</code>" in text
    made.driver = None
    assert made.observer.look(releases=1).run.collapse is None
    made.close()


def test_the_worst_comes_first(picture):
    both = counting(with_current(picture, stalled_since_unix_s=NOW - 9), ledger_rollbacks=1)
    assert alerts(both) == ["ChoraleRoundStalled", "ChoraleLedgerRolledBack"]
    assert judge(both).level is Level.ALARM


def test_a_stall_names_who_is_missing(tmp_path):
    made = samples.in_a_run(tmp_path, waiting=("hospital-b", "hospital-d"), silent=("hospital-b",))
    made.driver.current = RoundFigures(
        round=13, attempt=1, phase=Phase.TRAINING, phase_since_unix_s=NOW - 3600
    )
    concerns = judge(made.observer.look(releases=50)).concerns
    assert [concern.alert for concern in concerns] == ["ChoraleRoundStalled", "ChoraleSiloSilent"]
    assert "has been stalled for 10 s: too few silos are ready" in concerns[0].what
    assert "not heard of: hospital-b." in concerns[0].what
    made.close()


def test_what_was_counted_since_the_start_reaches_the_page(tmp_path):
    made = samples.in_a_run(tmp_path)
    metrics = made.context.metrics
    for counter in (metrics.audit_failures, metrics.audit_head_conflicts, metrics.ledger_rollbacks):
        counter.inc()
    text = made.html()
    assert "Someone is needed" in text
    for alert in ("ChoraleAuditChainBroken", "ChoraleAuditHeadConflict", "ChoraleLedgerRolledBack"):
        assert f"<code>{alert}</code>" in text
    made.close()
