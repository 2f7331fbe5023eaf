"""What is said while the demo runs: how far a part is, what is left of it, every finished round."""

import io
import json
import re
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from lab.demo.guess import Guess
from lab.demo.outcome import Outcome
from lab.demo.progress import Progress
from lab.demo.run import Demo
from lab.demo.scenario import SILOS, DemoSettings
from lab.demo.stretch import Stretch
from tests.kit.lab.outcomes import finished_round, row
from tests.kit.waiting import until


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def part_of(clock, **changes):
    return Stretch(
        **{"title": "together", "steps": 3, "called": "rounds", "clock": clock} | changes
    )


# What is left ------------------------------------------------------------------------------------


def test_before_a_step_is_done_what_is_left_is_a_guess_or_not_said(clock):
    part, guessed = part_of(clock), part_of(clock, guess_s=600.0)
    clock.now += 60
    assert part.left_s is None
    assert str(part) == "together: 0 of 3 rounds, 1 min 0 s"
    assert guessed.left_s == pytest.approx(540)
    assert str(guessed) == "together: 0 of 3 rounds, 1 min 0 s, about 9 min left"
    assert guessed.share == pytest.approx(0.1)


def test_what_was_measured_replaces_the_guess(clock):
    part = part_of(clock, guess_s=6000.0)
    clock.now += 40
    part.step("round 2")
    clock.now += 10
    # Two rounds of 40 s are left, and ten seconds of them are over.
    assert part.left_s == pytest.approx(70)
    assert str(part) == "together: 1 of 3 rounds, 50 s, about 70 s left; round 2"


def test_a_step_that_takes_longer_has_something_left_and_those_after_it_too(clock):
    part = part_of(clock)
    clock.now += 40
    part.step()
    clock.now += 100
    assert part.left_s == pytest.approx(10 + 40)
    part.step()
    part.step()
    assert part.left_s == 0.0
    assert part.share == 1.0


def test_steps_never_go_back_and_never_beyond_the_last(clock):
    part = part_of(clock)
    part.reach(2)
    part.reach(1)
    assert part.done == 2
    part.reach(9)
    part.step()
    assert part.done == 3


# The guess ---------------------------------------------------------------------------------------


def work(directory, run_id, explore, train, tries):
    directory.mkdir(exist_ok=True)
    row = {
        "run": run_id,
        "episodes": {"craft": tries},
        "duration_s": {"explore": explore, "train": train, "total": 900.0},
    }
    with (directory / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_the_guess_comes_from_the_rounds_of_the_silos_and_the_cores(tmp_path, monkeypatch):
    directories = [tmp_path / silo_id for silo_id in SILOS]
    assert Guess.of_silos(directories, "run-1") is None
    for directory in directories:
        work(directory, "run-1", explore=60.0, train=30.0, tries=600)
        work(directory, "an older one", explore=1e6, train=1e6, tries=1)
    with (directories[-1] / "rounds.jsonl").open("a") as file:
        file.write('{"run": "run-1", "epis')
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    two = Guess.of_silos(directories, "run-1")
    # Four at once as in the rounds; two on two cores are twice as fast, and one not faster still.
    assert two.tries_s(400, silos=4) == pytest.approx(40)
    assert two.tries_s(400, silos=2) == two.tries_s(400, silos=1) == pytest.approx(20)
    # Four times 90 s at half the time each, two at a time; four times 40 s of judging likewise.
    assert two.alone_s(held_out_tries=400, at_once=2) == pytest.approx(90 + 40)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    eight = Guess.of_silos(directories, "run-1")
    assert eight.tries_s(400, silos=1) == pytest.approx(40)
    assert eight.alone_s(held_out_tries=400, at_once=2) == pytest.approx(180 + 80)


def test_a_round_is_guessed_as_it_was_measured_on_two_slow_cores():
    """202, 174 and 194 s where a plan waits for 165."""
    assert 174 <= DemoSettings().recipe.round_s <= 202


# On a terminal, and elsewhere --------------------------------------------------------------------


def test_where_there_is_no_terminal_a_long_part_speaks_again_and_again(capsys):
    progress = Progress(every_s=0.02)
    progress.parts = 5
    with progress.stretch("judging", steps=4, called="silos", guess_s=30.0) as part:
        part.reach(3)
        part.doing = "[red] is no colour here"
        said = []
        until(lambda: len(_told(capsys, said, r"3 of 4 silos.* left; \[red\] is no")) >= 2, "lines")
    assert all(" 1/5 judging: " in line for line in said)
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def _told(capsys, said, pattern):
    said += capsys.readouterr().err.splitlines()
    return [line for line in said if re.search(pattern, line)]


def test_a_short_part_says_nothing(capsys):
    with Progress().stretch("judging", steps=4, called="silos") as part:
        part.step()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_one_line_is_drawn_again_and_does_not_stay():
    sink = io.StringIO()
    progress = Progress(Console(file=sink, force_terminal=True, width=80, height=20))
    with progress.stretch("each silo alone", steps=16, called="steps", guess_s=90.0) as part:
        part.step("silo-a is through round 1 of 3, with more words than a line of eighty can hold")
        progress.say("said meanwhile")
    drawn = sink.getvalue()
    assert "each silo alone: 1 of 16 steps" in drawn
    assert "said meanwhile" in drawn
    # The line is cut, not folded, and erased at the end.
    assert "of eighty can hold" not in drawn
    assert drawn.rstrip().endswith("\x1b[2K")


# The run -----------------------------------------------------------------------------------------


def status(finished=(), current=None, **run):
    return {
        "run": {"run_id": "r", "round": 1, "rounds": 2, **run},
        "finished": list(finished),
        "current": current,
    }


def test_a_status_becomes_one_line_for_each_finished_round(capsys):
    progress = Progress()
    second = finished_round(
        round=2,
        success=[{"family": "craft", "success_ratio": "NaN"}],
        survivors=list(SILOS),
    )
    current = {"round": 2, "phase": "training", "waiting_for": [{"silo_id": "a"}]}
    with progress.stretch("together", steps=2, called="rounds") as part:
        progress.status(status([finished_round()], current), part)
        assert (part.done, part.doing) == (1, "round 2/2 training, waiting for a")
        current["waiting_for"] = [{"silo_id": name} for name in "abc"]
        progress.status(status(current=current), part)
        assert part.doing == "round 2/2 training, waiting for 3 silos"
        progress.status(status([second]), part)
        assert part.done == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "3 silos in the sum" in lines[0]
    assert f"lost on the way: {SILOS[3]}" in lines[0]
    assert "25.0 ± 1.0 %" in lines[0]
    assert "lost" not in lines[1]


def test_steps_of_a_round_are_told_apart_and_only_the_first_has_figures(capsys):
    progress = Progress()
    nothing = [{"family": "craft", "success_ratio": "NaN"}]
    finished = [finished_round(), finished_round(step=1, success=nothing)]
    with progress.stretch("together", steps=6, called="sums") as part:
        progress.status(status(finished, rounds=3, step=1, steps=2), part)
        assert part.done == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "step 1/2" in first
    assert "success while exploring" in first
    assert "step 2/2" in second
    assert "success" not in second


def test_what_a_command_says_is_told_at_once_and_its_failure_with_it(tmp_path):
    demo = Demo(directory=tmp_path, settings=DemoSettings(), progress=Progress())
    with pytest.raises(Exception, match=r"chorale-silo alone failed:[\s\S]*plan\.toml"):
        list(demo._silo_command("alone", str(tmp_path / "plan.toml")))


def test_silos_alone_are_counted_and_their_success_is_not_shown(tmp_path, monkeypatch, capsys):
    settings = DemoSettings(rounds=2)
    progress = Progress(every_s=0.01)
    demo = Demo(directory=tmp_path, settings=settings, progress=progress)
    parts = []

    def command(self, *arguments):
        out = Path(arguments[arguments.index("--out") + 1])
        out.mkdir(parents=True)
        yield "a warning of some library\n"
        for number in (1, 2):
            yield f"round {number}: success while exploring 61.3 %\n"
        rows = row(0, 3, 4, run="alone", round=settings.recipe.rounds)
        (out / "evaluation.jsonl").write_text(json.dumps(rows))
        time.sleep(0.05)

    @contextmanager
    def noted(title, **given):
        with Progress.stretch(progress, title, **given) as part:
            yield part
        parts.append(part)

    monkeypatch.setattr(Demo, "_silo_command", command)
    monkeypatch.setattr(progress, "stretch", noted)
    outcome = Outcome()
    demo._alone(outcome)
    (part,) = parts
    # Two rounds and a judgement of each.
    assert (part.done, part.steps) == (12, 12)
    assert outcome.headline(1.0)["alone"].episodes == 16
    assert "61.3" not in capsys.readouterr().err
