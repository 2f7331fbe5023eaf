"""The live view of a run: whatever its state, who is waited for, since when and until when."""

import io
import json
import math
import re
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import grpc
import pytest
from rich.console import Console

from chorale.v1 import admin_pb2 as pb
from dp.noise.estimate import Estimate
from ops.cli.bars import bars
from server.cli import watch
from server.cli.program import place_of
from server.cli.watch import Panel, span, status_json, view

NOW = 1_800_000_000


def status(state="running", *, current=None, finished=(), error="", **run):
    summary = pb.RunSummary(run_id="clinic-1", name="clinic", state=state, rounds=3, steps=1, **run)
    answer = pb.WatchRunResponse(
        run=summary, finished=finished, error=error, epsilon_spent=2.0, epsilon_cap=8.0,
        delta=1e-5, epsilon_unit="silo",
    )  # fmt: skip
    if current is not None:
        answer.current.CopyFrom(current)
    return answer


def phase(**changes):
    fields = {
        "round": 1, "attempt": 2, "phase": "masked_input", "phase_since_unix_s": NOW - 75,
        "deadline_unix_s": NOW + 45, **changes,
    }  # fmt: skip
    return pb.RoundStatus(**fields)


def waiting(**last):
    return [
        pb.WaitingFor(silo_id=name, since_unix_s=NOW - 75, last_byte_unix_s=seen)
        for name, seen in last.items()
    ]


def done(number, **success):
    families = [
        pb.FamilySuccess(
            family=family,
            success_ratio=ratio,
            standard_error=math.inf if math.isnan(ratio) else 0.01,
        )
        for family, ratio in success.items()
    ]
    return pb.RoundStatus(
        round=number, outcome="aggregated", success=families, cohort=["a", "b", "c"],
        survivors=["a", "b", "c"], agreement=math.nan,
    )  # fmt: skip


def shown(message, curves=None):
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(view(message, curves or {}, NOW))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_phase_names_each_silo_since_when_until_when_and_its_last_byte():
    current = phase(waiting_for=waiting(**{"hospital-a": NOW - 3, "hospital-b": 0}))
    lines = shown(status(current=current, round=0))
    assert [" ".join(line.split()) for line in lines] == [
        "clinic-1 running round 0/3",
        "round 1/3 attempt 2: masked_input for 1 min 15 s, deadline in 45 s",
        "waiting for since until last byte",
        "hospital-a 1 min 15 s ago in 45 s 3 s ago",
        "hospital-b 1 min 15 s ago in 45 s never",
        "silo-level ε 2 of 8 at δ = 1e-05 (zero-out adjacency) ███░░░░░░░░░ 25%",
    ]


def test_a_phase_that_waits_for_nobody_says_so():
    current = phase(phase="aggregate", deadline_unix_s=NOW - 5)
    lines = shown(status(current=current))
    assert lines[1].endswith("aggregate for 1 min 15 s, deadline passed 5 s ago")
    assert lines[2] == "waiting for no silo: the coordinator is at work"


def test_a_round_that_asks_some_silos_names_them_and_says_why():
    current = phase(phase="aggregate", chosen=["a", "b", "c"], chosen_why="3 drawn of\n5")
    lines = shown(status(current=current))
    assert lines[2] == "this round asks a, b, c: 3 drawn of 5"
    made, out = panel(terminal=False)
    over = done(1)
    over.chosen[:] = ["a", "b", "c", "d"]
    with made:
        made.show(status("running", finished=[over]))
    assert out.getvalue().splitlines()[0].endswith(", asked a, b, c, d")


def test_a_stalled_round_says_since_when():
    current = phase(
        phase="training", stalled_since_unix_s=NOW - 3700, waiting_for=waiting(a=NOW - 9)
    )
    lines = shown(status(current=current))
    assert lines[2].startswith("stalled for 1 h 1 min: too few silos are ready")
    assert "9 s ago" in lines[4]


@pytest.mark.parametrize(
    ("state", "run", "line"),
    [
        (
            "queued",
            {"behind": "other-7"},
            "waiting behind other-7 for 1 min 30 s, without a deadline: it begins by itself",
        ),
        (
            "queued",
            {},
            "waiting as the next one for 1 min 30 s, without a deadline: it begins by itself",
        ),
        (
            "paused",
            {},
            "waiting for an admin for 1 min 30 s, without a deadline: chorale run resume clinic-1",
        ),
    ],
)
def test_a_run_that_is_not_driven_says_what_it_waits_for(state, run, line):
    # A phase that is left over from before is not one that anybody waits in.
    for current in (None, phase(waiting_for=waiting(a=NOW))):
        lines = shown(status(state, current=current, state_since_unix_s=NOW - 90, **run))
        assert lines[1] == line
        assert lines[2].startswith("silo-level ε")


def test_a_run_that_is_pausing_shows_what_is_finished_first():
    lines = shown(status("pausing", current=phase(waiting_for=waiting(a=NOW))))
    assert lines[1] == "pausing: the sum that silos have agreed on is finished first"
    assert "deadline in 45 s" in lines[2]


def test_a_reason_is_shown_in_every_state():
    for state in ("failed", "paused", "aborted"):
        assert "reason: the quorum is gone" in shown(status(state, error="the quorum is gone"))


def test_a_silos_reason_does_not_drive_the_terminal():
    error = "silo-a: \x1b[2J\x1b[8mrun r: finished\nreason: none"
    console = Console(file=io.StringIO(), force_terminal=True, width=200, no_color=True)
    console.print(view(status("failed", error=error), {}, NOW))
    text = console.file.getvalue()
    assert "\x1b[2J" not in text
    assert "\x1b[8m" not in text
    (line,) = (line for line in text.splitlines() if "reason:" in line)
    assert "run r: finished reason: none" in line


def test_each_environment_has_its_curve():
    shop = [Estimate(ratio, 0.02) for ratio in (0.0, 0.5, 1.0)]
    lines = shown(status(), {"shop": shop, "maze-long": [Estimate(0.25, 0.0)], "empty": []})
    assert lines[-2:] == ["success maze-long ▃ 25.0 %", "success shop      ▁▅█ 100.0 ± 2.0 %"]


@pytest.mark.parametrize(
    ("spent", "cap", "end"),
    [
        (0.0, 8.0, "░" * 12 + " 0%"),
        (8.0, 8.0, "█" * 12 + " 100%"),
        (0.001, 8.0, "█" + "░" * 11 + " 0%"),
        (math.inf, 8.0, "ε inf of 8 at δ = 1e-05 (zero-out adjacency)"),
        (1.0, math.inf, "ε 1 of inf at δ = 1e-05 (zero-out adjacency)"),
        (math.nan, 8.0, "ε nan of 8 at δ = 1e-05 (zero-out adjacency)"),
    ],
)
def test_the_budget_is_shown_as_spent_of_its_cap(spent, cap, end):
    message = status()
    message.epsilon_spent, message.epsilon_cap = spent, cap
    assert shown(message)[-1].endswith(end)


def test_a_narrow_terminal_loses_nothing():
    console = Console(width=40, file=io.StringIO(), color_system=None)
    current = phase(waiting_for=waiting(**{"hospital-a": NOW - 3}))
    console.print(view(status(current=current), {}, NOW))
    text = console.file.getvalue()
    assert all(len(line) <= 40 for line in text.splitlines())
    for word in ("hospital-a", "masked_input", "deadline", "3 s ago"):
        assert word in " ".join(text.split())


LONG = [f"university-hospital-of-the-northern-region-department-{n:08d}x" for n in range(3)]
"""As long as a silo's id may be."""


def crowded():
    current = phase(
        phase_since_unix_s=NOW - 90_000, stalled_since_unix_s=NOW - 90_000, chosen=LONG,
        chosen_why="those that were asked least often",
        waiting_for=waiting(**dict.fromkeys(LONG, NOW - 9)),
    )  # fmt: skip
    ended = done(1, shop=0.5, maze=math.nan)
    ended.cohort[:], ended.survivors[:], ended.chosen[:] = LONG, LONG[:2], LONG
    message = status(current=current, finished=[ended])
    message.epsilon_spent, message.epsilon_cap = 10.81, 1e9
    return message


def test_a_terminal_of_80_columns_is_enough(monkeypatch):
    """Folded between words: no terminal breaks a line of it anywhere else."""
    monkeypatch.setenv("COLUMNS", "80")
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, highlight=False)
    made = Panel(live=True, console=console)
    with made:
        for _ in range(80):
            made.show(crowded(), LONG)
    # Without what moves the cursor.
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).splitlines()
    assert "round 1/3 aggregated: 2 silos in the sum" in "\n".join(lines)
    assert max(map(len, lines)) <= 80
    folded = made.end(80)
    assert max(map(len, folded)) <= 80
    for name in LONG:
        assert any(name[:20] in line for line in folded)
        assert any(name[-5:] in line for line in folded)
    assert any(line.endswith("0%") and "zero-out" in line for line in folded)


def test_names_are_text_and_no_markup():
    lines = shown(status("queued", behind="[red]x[/red]", state_since_unix_s=0))
    assert "behind [red]x[/red]" in lines[1]


def test_spans_and_curves_stay_inside_their_bounds():
    assert [span(s) for s in (-5, 0.9, 59, 60, 3599, 3600, 90_061)] == [
        "0 s", "0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "25 h 1 min",
    ]  # fmt: skip
    assert bars([-0.2, 0.0, 0.999, math.nan, 1.0, 1.3]) == "▁▁█·██"
    assert len(bars([0.5] * 500)) == 60


def test_steps_are_named_where_a_round_has_several():
    run = pb.RunSummary(rounds=3, steps=4)
    assert place_of(run, 2, 1) == "round 2/3, step 2/4"


def test_who_sits_out_is_named_in_every_view():
    current = phase(waiting_for=waiting(a=NOW - 3))
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(view(status(current=current), {}, NOW, ("hospital-b", "hospital-c")))
    assert "sitting out after drop-outs: hospital-b, hospital-c" in console.file.getvalue()
    made, out = panel(terminal=False)
    with made:
        made.show(status(current=current), ())
        made.show(status(current=current), ("hospital-b",))
        made.show(status(current=current), ("hospital-b",))
        made.show(status(current=current), ())
    assert out.getvalue().splitlines() == [
        "clinic-1 running, sitting out: hospital-b",
        "clinic-1 running",
    ]


# The panel ---------------------------------------------------------------------------------------


def panel(*, terminal, live=True):
    console = Console(
        width=100, file=io.StringIO(), force_terminal=terminal, color_system=None, highlight=False
    )
    return Panel(live=live, console=console), console.file


def test_on_a_terminal_the_view_is_live():
    made, out = panel(terminal=True)
    with made:
        made.show(status(current=phase(waiting_for=waiting(a=int(time.time())))))
        made.show(status("finished", finished=[done(1, shop=0.5), done(2, shop=0.75)]))
    text = out.getvalue()
    assert "round 2/3 aggregated: 3 silos in the sum" in text
    assert "success shop ▅▇ 75.0 ± 1.0 %" in text
    assert "silo-level ε 2 of 8" in text


FELL = "success fell from 40.0 ± 1.0 % in round 1 to 1.0 ± 1.0 % in round 3"
PAUSE = (
    f"{FELL}, and stays there: pause: chorale run pause clinic-1; "
    "go back: chorale adapter rollback clinic-1 --to-round 0"
)


def test_a_collapse_is_said_once_in_one_line_and_stands_in_the_view():
    made, out = panel(terminal=False)
    with made:
        made.show(status(finished=[done(1, shop=0.4), done(2, shop=0.01)]))
        assert "fell" not in out.getvalue()
        assert made.collapse is None
        made.show(status(finished=[done(3, shop=0.01)]))
        made.show(status(finished=[done(4, shop=0.01)]))
    assert out.getvalue().count("success fell") == 1
    assert PAUSE in out.getvalue().splitlines()
    assert any(line.startswith(FELL.replace("round 3", "round 4")) for line in made.end())
    assert json.loads(json.dumps(made.collapse)) == {
        "round": 4,
        "success": {"mean": 0.01, "standard_error": pytest.approx(0.01)},
        "best_round": 1,
        "best": {"mean": 0.4, "standard_error": pytest.approx(0.01)},
        "back_to_round": 0,
    }

    live, _ = panel(terminal=True)
    with live:
        live.show(status(finished=[done(1, shop=0.4), done(2, shop=0.01), done(3, shop=0.01)]))
        assert PAUSE in live.end()
        live.show(status("paused"))
        assert PAUSE.replace("pause: chorale run pause clinic-1; ", "") in live.end()
        # Of a run that is over there is nothing to do.
        live.show(status("finished"))
        assert FELL in live.end()
        assert PAUSE not in live.end()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_end_is_a_result_of_whole_lines(terminal):
    """How wide a terminal is and whether there is one changes nothing about it."""
    made, _ = panel(terminal=terminal)
    with made:
        made.show(status(current=phase(waiting_for=waiting(a=NOW))))
        made.show(status("failed", error="x" * 300, finished=[done(1, shop=0.5)]))
    first, reason, budget, curve = made.end()
    assert first == "clinic-1  failed  round 0/3"
    assert reason == "reason: " + "x" * 300
    assert budget.startswith("silo-level ε 2 of 8")
    assert curve == "success shop ▅ 50.0 ± 1.0 %"


def cleared(made, out, error):
    """What the view writes when it is left."""
    with suppress(KeyboardInterrupt), made:
        made.show(status(current=phase(waiting_for=waiting(a=int(time.time())))))
        before = len(out.getvalue())
        if error is not None:
            raise error
    return "\x1b[2K" in out.getvalue()[before:].rpartition("\n")[2]


def test_the_view_makes_room_for_the_end_and_stays_where_none_follows():
    assert cleared(*panel(terminal=True), None)
    assert not cleared(*panel(terminal=True), KeyboardInterrupt())


def test_without_a_terminal_each_change_is_a_line():
    made, out = panel(terminal=False)
    with made:
        for message in (
            status("queued", behind="other-7"),
            status("queued", behind="other-7"),
            status("running", current=phase(waiting_for=waiting(a=NOW))),
            status("running", current=phase(phase="training", stalled_since_unix_s=NOW,
                                            waiting_for=waiting(a=NOW, b=NOW))),
            status("running", finished=[done(1, shop=0.5, maze=math.nan)]),
            status("paused"),
            status("finished"),
        ):  # fmt: skip
            made.show(message)
    summed = "round 1/3 aggregated: 3 silos in the sum, 0.0 s, 0 bytes"
    assert out.getvalue().splitlines() == [
        "clinic-1 queued behind other-7",
        "clinic-1 running",
        "clinic-1 running, stalled: waiting for a, b",
        f"{summed}  success 50.0 ± 1.0 % (1 of 2 environments) ▅",
        "clinic-1 running",
        "clinic-1 paused",
        "clinic-1 finished",
    ]


def test_for_scripts_the_panel_is_silent_and_a_status_is_json_without_nan():
    made, out = panel(terminal=True, live=False)
    message = status("paused", finished=[done(1, shop=math.nan)])
    message.epsilon_spent = math.inf
    with made:
        made.show(message)
    assert out.getvalue() == ""
    line = json.dumps(status_json(message), allow_nan=False)
    read = json.loads(line)
    assert "\n" not in line
    assert read["epsilon_spent"] == "inf"
    assert read["finished"][0]["success"][0]["success_ratio"] is None
    assert read["run"]["state"] == "paused"


class Away(grpc.RpcError):
    def code(self):
        return grpc.StatusCode.UNAVAILABLE


def following(monkeypatch, *answers):
    """Follow a coordinator whose calls end so, one after the other; the last one repeats."""
    left, now = list(answers), [1000.0]
    calls = []

    def call(_request):
        calls.append(now[0])
        statuses, error = left.pop(0) if len(left) > 1 else left[0]
        yield from statuses
        if error is not None:
            raise error

    @contextmanager
    def connect(_data):
        yield SimpleNamespace(WatchRun=call)

    def sleep(seconds):
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: NOW + now[0], sleep=sleep)
    monkeypatch.setattr(watch, "connect", connect)
    monkeypatch.setattr(watch, "time", clock)
    told = []
    return watch.follow("data", "clinic-1", waiting=told.append), told, calls


def test_a_coordinator_that_never_answered_is_not_waited_for(monkeypatch):
    statuses, told, calls = following(monkeypatch, ([], Away()))
    with pytest.raises(Away):
        next(statuses)
    assert (told, len(calls)) == ([], 1)


def test_one_that_is_away_is_waited_for_and_that_is_said_once_each_time(monkeypatch):
    gone, back = ([], Away()), ([status()], Away())
    statuses, told, calls = following(
        monkeypatch, back, gone, gone, back, gone, ([status("finished")], None)
    )
    assert [answer.run.state for answer in statuses] == ["running", "running", "finished"]
    assert told == [NOW + 1000 + watch.PATIENCE_S, NOW + 1003 + watch.PATIENCE_S]
    statuses, told, calls = following(monkeypatch, back, gone)
    next(statuses)
    with pytest.raises(Away):
        next(statuses)
    assert (len(told), len(calls)) == (1, watch.PATIENCE_S + 2)


def test_the_panel_says_that_it_waits():
    console = Console(width=40, file=io.StringIO())
    Panel(live=False, console=console).wait(NOW)
    said = console.file.getvalue()
    assert said.startswith("the coordinator does not answer; waiting for it until ")
    assert said.endswith(time.strftime("%H:%M:%S", time.localtime(NOW)) + "\n")
