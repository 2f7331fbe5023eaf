"""``chorale run show``: whose contributions each sum holds, and the rank of the cohorts."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from chorale.v1 import admin_pb2 as pb
from federation.wire import record_to_proto
from server.cli import client
from server.cli.main import app
from tests.kit.federation.records import KEY, after, initial, one_sum

ALL = ("ant", "bee", "cat", "dog")


class Stream(list):
    """Statuses of a run; the newest is repeated until the caller hangs up."""

    cancelled = False

    def __iter__(self):
        yield from super().__iter__()
        while not self.cancelled:
            yield self[-1]

    def cancel(self):
        self.cancelled = True


def chain(*made):
    """Signed records after the initial one: survivors of each part, or a kind."""
    suite = 2
    records = [replace(initial(), suite=suite).sign(KEY)]
    for each in made:
        if isinstance(each, str):
            record = after(records[-1], each, suite=suite)
        else:
            parts = tuple(
                one_sum(part=number, survivors=survivors)[0]
                for number, survivors in enumerate(each)
            )
            record = after(records[-1], parts=parts, suite=suite)
        records.append(record.sign(KEY))
    return records


def shown(monkeypatch, records, finished, *options, state="paused", mode="none"):
    summary = pb.RunSummary(run_id="run-1", state=state, round=records[-1].round)
    half = len(finished) // 2
    statuses = Stream(
        pb.WatchRunResponse(run=summary, finished=part)
        for part in (finished[:half], finished[half:], [])
    )
    stub = SimpleNamespace(
        ListAdapters=lambda _request, timeout: pb.ListAdaptersResponse(
            records=[record_to_proto(record) for record in records]
        ),
        WatchRun=lambda _request, timeout: statuses,
        GetBudget=lambda _request, timeout: pb.GetBudgetResponse(
            runs=[
                pb.RunBudget(run_id="run-0", mode="silo"),
                pb.RunBudget(run_id="run-1", mode=mode),
            ]
        ),
    )
    monkeypatch.setattr(client, "connect", lambda _data: nullcontext(stub))
    answer = CliRunner().invoke(app, ["run", "show", "run-1", *options])
    assert answer.exit_code == 0, answer.output
    assert statuses.cancelled
    return answer.stdout


def done(number, outcome="aggregated", survivors=ALL):
    return pb.RoundStatus(round=number, attempt=1, outcome=outcome, cohort=ALL, survivors=survivors)


def test_each_round_names_its_survivors_and_the_rank_follows(monkeypatch):
    records = chain([ALL], [ALL[:3]], "skipped")
    finished = [done(1), done(2, survivors=ALL[:3]), done(3, "skipped", ())]
    assert shown(monkeypatch, records, finished).splitlines() == [
        "run-1  paused  mode none  suite v2",
        "round   0  initial",
        "round   1  aggregated   4 silos: ant, bee, cat, dog",
        "round   2  aggregated   3 silos: ant, bee, cat; lost dog",
        "round   3  skipped",
        (
            "2 sums of 2 different cohorts among 4 silos: rank 2, their combinations open 2 "
            "independent sums; combinations show dog alone, up to what contributions changed "
            "between the sums; only noise hides a difference"
        ),
    ]


def test_whom_a_round_asked_is_told_with_the_reason(monkeypatch):
    records, finished = chain([ALL[:3]], "skipped"), [done(1, survivors=ALL[:3])]
    finished.append(done(2, "skipped", ()))
    for each in finished:
        each.chosen[:], each.chosen_why = ALL, "4 drawn of 6"
    finished[1].chosen_why = "because \x1b[31m"
    said = shown(monkeypatch, records, finished).splitlines()
    assert said[3] == "  asked ant, bee, cat, dog: 4 drawn of 6"
    assert said[5] == "  asked ant, bee, cat, dog: because  [31m"
    answer = json.loads(shown(monkeypatch, records, finished, "--format", "json"))["data"]
    assert answer["releases"][1]["chosen"] == list(ALL)
    assert answer["releases"][1]["chosen_why"] == "4 drawn of 6"
    assert answer["releases"][0]["chosen"] == []


def test_a_quarantined_sum_counts_though_the_chain_has_no_part_of_it(monkeypatch):
    records = chain([ALL], "skipped")
    finished = [done(1), done(2, "quarantined", ALL[1:])]
    answer = json.loads(shown(monkeypatch, records, finished, "--format", "json"))["data"]
    assert answer["cohorts"]["rank"] == 2
    assert answer["cohorts"]["alone"] == ["ant"]
    assert [release["outcome"] for release in answer["releases"]] == [
        "initial", "aggregated", "quarantined",
    ]  # fmt: skip
    assert answer["releases"][2]["quarantined_survivors"] == list(ALL[1:])


def test_a_sum_that_was_opened_and_not_used_counts(monkeypatch):
    records = chain([ALL], "skipped")
    skipped = done(2, "skipped", ALL[1:])
    skipped.opened.add(attempt=1, survivors=ALL[1:])
    first = done(1)
    first.opened.add(attempt=1, survivors=ALL)
    said = shown(monkeypatch, records, [first, skipped]).splitlines()
    assert said[3:5] == [
        "round   2  skipped",
        "  part  0  3 silos: bee, cat, dog; opened, not applied",
    ]
    assert said[5].startswith("2 sums of 2 different cohorts among 4 silos: rank 2")
    assert "combinations show ant alone" in said[5]


def test_the_parts_of_a_round_are_sums_of_their_own(monkeypatch):
    groups = [("ant", "bee", "cat"), ("dog", "eel", "fox")]
    records = chain(groups, groups)
    finished = [done(number, survivors=[*groups[0], *groups[1]]) for number in (1, 2)]
    said = shown(monkeypatch, records, finished).splitlines()
    assert said[2:5] == [
        "round   1  aggregated   2 sums",
        "  part  0  3 silos: ant, bee, cat",
        "  part  1  3 silos: dog, eel, fox",
    ]
    assert said[-1].startswith("4 sums of 2 different cohorts among 6 silos: rank 2")
    assert "no combination shows one silo alone" in said[-1]


def test_a_bisected_round_says_which_half_was_gross(monkeypatch):
    records = chain([ALL], "skipped", "skipped")
    halves = [
        pb.HalfSum(verdict="gross", survivors=ALL[:2], suspects=ALL[:1]),
        pb.HalfSum(part=1, verdict="lost"),
    ]
    finished = [
        done(1),
        pb.RoundStatus(round=2, attempt=1, outcome="bisected", cohort=ALL, halves=halves),
        pb.RoundStatus(round=3, outcome="bisected"),
    ]
    said = shown(monkeypatch, records, finished, mode="silo").splitlines()
    assert said[3:7] == [
        "round   2  bisected     in halves; nothing applied",
        "  half 1  GROSS     ant; filled by bee",
        "  half 2  lost      no sum",
        "round   3  bisected",
    ]
    assert said[7].startswith("2 sums of 2 different cohorts")


@pytest.mark.parametrize("finished", [[], [done(1)]])
def test_a_run_that_began_is_shown_without_waiting_for_its_end(monkeypatch, finished):
    records = chain(*([[ALL]] * len(finished)))
    answer = shown(monkeypatch, records, finished, state="running")
    assert answer.splitlines()[-1] == (
        "1 sum, all of one cohort of 4 silos: rank 1, no combination shows more than their sum"
        if finished
        else "no sum yet"
    )
