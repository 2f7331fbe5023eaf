"""``chorale run bisect``: what is asked, what is split, and which half was gross."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from chorale.v1 import admin_pb2 as pb
from server.cli import client
from server.cli.main import app
from server.cli.watch import Panel

asked = []


def bisected(monkeypatch, answer, *options):
    def answering(request, timeout):
        asked[:] = [request]
        return answer

    stub = SimpleNamespace(BisectRun=answering)
    monkeypatch.setattr(client, "connect", lambda _data: nullcontext(stub))
    said = CliRunner().invoke(app, ["run", "bisect", "run-1", *options])
    assert said.exit_code == 0, said.output
    return said.stdout


@pytest.mark.parametrize(
    ("state", "when"),
    [("paused", "when it is resumed"), ("running", "after the round that is under way")],
)
def test_a_bisection_that_waits_says_whom_it_splits_and_when(monkeypatch, state, when):
    answer = pb.BisectRunResponse(suspects=["ant", "bee"], state=state)
    said = bisected(monkeypatch, answer, "--suspects", "ant, bee,", "--submit-token", "t")
    assert said == f"run-1 is bisected {when}; to split, 2 silos: ant, bee\n"
    assert asked == [pb.BisectRunRequest(run_id="run-1", suspects=["ant", "bee"], submit_token="t")]


def test_one_that_is_over_says_which_half_was_gross(monkeypatch):
    answer = pb.BisectRunResponse(
        suspects=["ant", "bee"],
        state="paused",
        round=3,
        halves=[
            pb.HalfSum(verdict="possible", survivors=["ant", "cat"], suspects=["ant"]),
            pb.HalfSum(part=1, verdict="gross", survivors=["bee", "dog"], suspects=["bee"]),
        ],
    )
    assert bisected(monkeypatch, answer).splitlines() == [
        "round 3 of run-1 split 2 silos: ant, bee",
        "  half 1  possible  ant; filled by cat",
        "  half 2  GROSS     bee; filled by dog",
    ]
    # Without a token of the admin's it is a request of its own.
    assert len(asked[0].submit_token) == 32
    data = json.loads(bisected(monkeypatch, answer, "--format", "json"))["data"]
    assert [half["verdict"] for half in data["halves"]] == ["possible", "gross"]


@pytest.mark.parametrize(("verdict", "said"), [("gross", "half 2"), ("possible", "no half")])
def test_who_watches_is_told_which_half_was_gross(capsys, verdict, said):
    halves = [pb.HalfSum(verdict="possible"), pb.HalfSum(part=1, verdict=verdict)]
    done = pb.RoundStatus(round=2, attempt=1, outcome="bisected", halves=halves)
    run = pb.RunSummary(run_id="run-1", state="pausing", round=2, rounds=6, steps=1)
    with Panel(live=True) as panel:
        panel.show(pb.WatchRunResponse(run=run, finished=[done]))
    told = f"round 2/6 bisected, nothing applied: {said} gross; chorale run show run-1"
    assert told in capsys.readouterr().err
