"""Harnesses as processes: they play, and those that hang, die, lie or flood are ended alone."""

import json
import os
import signal
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from evolution.envs.catalogue import Catalogue, make
from evolution.envs.tasks import Split
from evolution.errors import EpisodeStateError, HarnessStartError, NotWantedError, RolloutError
from evolution.local_time import while_wanted
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.trajectory import Scaffold, Task
from tests.kit.evolution import harnesses as hs
from tests.kit.evolution.scripted_engine import (
    Recorded,
    ScriptedEngine,
    five_fields,
    recorded_fields,
)

LOOP = """
messages = [user("task %d" % TASK["index"])]
for turn in range(3):
    messages += [chat(messages), user("go on")]
report(1.0 if TASK["index"] % 2 else 0.0)
"""
AGENT = """
import json, os
from openai import OpenAI

client = OpenAI()
task = json.loads(os.environ["CHORALE_TASK"])
messages = [{"role": "system", "content": "craft"}, {"role": "user", "content": "get log"}]
words = []
for turn in range(2 + task["index"] % 3):
    done = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages)
    words += (done.choices[0].message.content or "").split()
    messages += [done.choices[0].message, {"role": "user", "content": "craft plank"}]
print("played", len(words), "words")
print(json.dumps({"reward": len(set(words)) / 100}))
"""


def tasks(count, name=hs.NAME):
    return tuple(Task(environment=name, task_id=1_008_000 + n) for n in range(count))


def ended(logs):
    return [
        (line["error"], line["counts_as"], line["environment"])
        for line in logs
        if line["event"] == "harness_ended"
    ]


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_sessions_of_an_agent_are_what_the_engine_saw_token_for_token(tiny_base, tmp_path):
    """Six sessions at once of a program that knows the ``openai`` package alone."""
    # While the first is answered the others get ready to ask, however busy the machine is.
    engine = Recorded(HfEngine(tiny_base, alpha=8.0), first_s=10.0)
    table = hs.program(tmp_path, AGENT, prelude="", success={"reward_at_least": 0.01})
    played = hs.play(engine, table, tasks=tasks(6))
    assert played.dropped == 0
    assert len(played.trajectories) == 6
    by_key = {}
    for call in engine.calls:
        by_key.setdefault(call[0], []).append(call)
    assert sorted(by_key) == list(range(6))
    for key, trajectory in enumerate(played.tries):
        assert trajectory.task == played.tasks[key]
        assert five_fields(trajectory) == recorded_fields(by_key[key], trajectory.reward)
        assert len(trajectory.steps) == 2 + trajectory.task.task_id % 3
        assert any(value for value in trajectory.logprobs)
    assert played.environment_steps == len(engine.calls)
    # Questions of several sessions shared calls, and one thread made them all.
    assert max(engine.sizes) > 1
    assert engine.threads == {threading.get_ident()}


def test_who_else_plays_changes_no_session(tiny_base, tmp_path):
    table = hs.program(tmp_path, LOOP)
    alone = table.model_copy(update={"at_once": 1})
    together, apart = (
        hs.play(HfEngine(tiny_base, alpha=8.0), one, tasks=tasks(4)) for one in (table, alone)
    )
    assert [t.token_ids for t in together.tries] == [t.token_ids for t in apart.tries]


def test_where_units_are_protected_only_tries_of_a_task_play_beside_each_other(tmp_path):
    engine = Recorded(ScriptedEngine("x"))
    asked = [task for task in tasks(3) for _ in range(2)]
    seen = []
    real = engine._engine.generate

    def generate(prompts, sampling):
        seen.append({prompt.key // 2 for prompt in prompts})
        time.sleep(0.2)
        return real(prompts, sampling)

    engine._engine.generate = generate
    hs.play(engine, hs.program(tmp_path, LOOP), tasks=asked, try_s=60.0)
    assert [
        units for units, before in zip(seen, [None, *seen], strict=False) if units != before
    ] == [
        {0},
        {1},
        {2},
    ]
    seen.clear()
    hs.play(engine, hs.program(tmp_path, LOOP), tasks=asked)
    assert any(len(units) > 1 for units in seen)


def test_harnesses_and_environments_share_a_round(tiny_base, tmp_path):
    engine = HfEngine(tiny_base, alpha=8.0)
    catalogue = Catalogue(foreign={hs.NAME: hs.program(tmp_path, LOOP)})
    own, built_in = tasks(3), tasks(3, "craft")
    mixed = [one for pair in zip(own, built_in, strict=True) for one in pair]
    played = run_episodes(
        engine,
        mixed,
        temperature=1.0,
        seed=3,
        max_new_tokens=6,
        round_index=4,
        make_environment=catalogue.make,
    )
    assert [one.task for one in played.tries] == mixed
    assert {one.round for one in played.tries} == {4}
    assert [one.success for one in played.tries[::2]] == [False, True, False]
    alone = run_episodes(
        engine, built_in, temperature=1.0, seed=3, keys=[1, 3, 5], max_new_tokens=6
    )
    assert [t.token_ids for t in played.tries[1::2]] == [t.token_ids for t in alone.tries]
    assert played.environment_steps == alone.environment_steps + 9
    assert played.tasks == tuple(mixed)


SAY = "said = chat([user('hello')])\n"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (SAY + "time.sleep(600)", "HarnessTimeoutError"),
        (SAY + "report()\nsys.stdout.flush()\ntime.sleep(600)", "HarnessTimeoutError"),
        (SAY + "report()\nsys.exit(3)", "HarnessExitError"),
        (SAY + "post('/reward', {'reward': 1.0})\nsys.exit(3)", "HarnessExitError"),
        (SAY + "report()\nsys.stdout.flush()\nos.kill(os.getpid(), 9)", "HarnessExitError"),
        (SAY + "raise ValueError", "HarnessExitError"),
        (SAY, "HarnessReportError"),
        (SAY + "report()\nprint('bye')", "HarnessReportError"),
        (SAY + "print('{\"reward\": NaN}')", "HarnessReportError"),
        (SAY + "print('{\"reward\": 1e999}')", "HarnessReportError"),
        (SAY + "report(1.01)", "HarnessReportError"),
        (SAY + "report(0.0, success=True)", "HarnessReportError"),
        (SAY + "post('/reward', {'reward': 1.0})\nreport()", "HarnessReportError"),
        ("report()", "HarnessReportError"),
        (SAY + "print('a' * 100_000)\nreport()", "HarnessOutputError"),
        (SAY + "while True: print('a' * 1000)", "HarnessOutputError"),
        (SAY + "chat([user('other')])\nreport()", "HarnessHistoryError"),
        (SAY + "MODEL = 'gpt-5'\nchat([user('hello'), said, user('x')])", "HarnessModelError"),
        (
            SAY + "MODEL = 'gpt-5'\ntry: chat([user('hello'), said, user('x')])\n"
            "except urllib.error.HTTPError: post('/reward', {'reward': 1.0})",
            "HarnessModelError",
        ),
    ],
)
def test_a_harness_that_misbehaves_is_ended_named_and_counted_and_the_round_goes_on(
    body, error, tmp_path
):
    """Of three tasks the one in the middle is played badly."""
    bad = f"if TASK['index'] == 1_008_001:\n{textwrap.indent(body, '    ')}\n    sys.exit(0)\n"
    # A clock that only those meet who hang: a busy machine needs its time to start a program.
    limit_s = 15.0 if error == "HarnessTimeoutError" else 60.0
    table = hs.program(tmp_path, bad + LOOP, timeout_s=limit_s, max_output_bytes=4_096)
    began = time.monotonic()
    with structlog.testing.capture_logs() as logs:
        played = hs.play(ScriptedEngine("x"), table, tasks=tasks(3))
    assert time.monotonic() - began < 300
    assert [one is None for one in played.tries] == [False, True, False]
    assert played.dropped == 1
    assert ended(logs) == [(error, "dropped", hs.NAME)]
    # Nothing that a harness wrote is in a log.
    assert "aaaa" not in str(logs)
    assert {line["event"] for line in logs} == {"harness_ended"}


def test_answers_without_end_end_a_try_unsolved(tmp_path):
    body = "m = [user('x')]\nwhile True: m += [chat(m), user('more')]"
    with structlog.testing.capture_logs() as logs:
        played = hs.play(ScriptedEngine("x"), hs.program(tmp_path, body, max_steps=4))
    (trajectory,) = played.tries
    assert (len(trajectory.steps), trajectory.truncated, trajectory.success) == (4, True, False)
    assert played.figures["truncated"] == 1.0
    assert played.dropped == 0
    assert ended(logs) == [("HarnessLimitError", "unsolved", hs.NAME)]


def test_a_harness_that_dies_of_a_history_it_cannot_shorten_has_outgrown_the_model(tmp_path):
    body = "m = [user('x')]\nwhile True: m += [chat(m), user('a' * 50)]"
    engine = ScriptedEngine("x", context_limit=400)
    table = hs.program(tmp_path, body, max_forks=2, max_steps=100)
    (trajectory,) = hs.play(engine, table).tries
    assert (trajectory.truncated, trajectory.success) == (True, False)


def test_everything_that_a_harness_started_ends_with_it(tmp_path):
    pids = tmp_path / "pids"
    child = (
        "import subprocess\n"
        "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'a').write(f'{{one.pid}}\\n{{os.getpid()}}\\n')\n"
    )
    for body, lost in ((SAY + "report()", 0), ("time.sleep(600)", 1)):
        pids.write_text("")
        began = time.monotonic()
        played = hs.play(ScriptedEngine("x"), hs.program(tmp_path, child + body, timeout_s=15.0))
        assert time.monotonic() - began < 300
        assert played.dropped == lost
        found = [int(line) for line in pids.read_text().split()]
        assert len(found) == 2
        deadline = time.monotonic() + 10
        while any(map(alive, found)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, found))


def test_what_a_harness_is_given_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("DAEMON_SECRET", "x")
    monkeypatch.setenv("CHORALE_SILO_THREADS", "2")
    seen = tmp_path / "seen.json"
    body = SAY + (
        "out = {'env': dict(os.environ), 'cwd': os.getcwd(), 'files': os.listdir('.'),"
        " 'group': os.getpgid(0) == os.getpid(), 'in': sys.stdin.read(),"
        " 'fds': sorted(os.listdir('/proc/self/fd'))}\n"
        f"open({str(seen)!r}, 'w').write(json.dumps(out))\nopen('left', 'w')\nreport()"
    )
    table = hs.program(
        tmp_path, body, environment={"LEVEL": "hard"}, instruction="Do it.", labels=("a", "b")
    )
    hs.play(ScriptedEngine("x"), table, tasks=tasks(2)[1:])
    out = json.loads(seen.read_text())
    given = out["env"]
    given.pop("LC_CTYPE", None)
    assert set(given) == {
        "CHORALE_TASK",
        "HOME",
        "LANG",
        "LEVEL",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_MODEL",
        "PATH",
        "TMPDIR",
    }
    assert json.loads(given["CHORALE_TASK"]) == {
        "index": 1_008_001,
        "label": "b",
        "instruction": "Do it.",
    }
    assert given["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert len(given["OPENAI_API_KEY"]) >= 43
    assert (out["group"], out["in"], out["files"]) == (True, "", [])
    assert not Path(out["cwd"]).exists()


def test_every_session_has_a_port_and_a_token_of_its_own(tmp_path):
    seen = tmp_path / "seen"
    body = SAY + f"open({str(seen)!r}, 'a').write(BASE + ' ' + TOKEN + '\\n')\nreport()"
    hs.play(ScriptedEngine("x"), hs.program(tmp_path, body), tasks=tasks(4))
    lines = [line.split() for line in seen.read_text().splitlines()]
    assert len({token for _, token in lines}) == 4
    for base, _ in lines:
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(base + "/models", timeout=5)  # noqa: S310  # loopback


def test_while_the_model_answers_the_harness_s_clock_stands(tmp_path):
    engine = ScriptedEngine("x")
    real = engine.generate

    def slow(prompts, sampling):
        time.sleep(6.0)
        return real(prompts, sampling)

    engine.generate = slow
    played = hs.play(engine, hs.program(tmp_path, LOOP, timeout_s=15.0))
    assert played.dropped == 0


@pytest.mark.parametrize(
    "change",
    [{"prefix": ("x",)}, {"variant": "x"}, {"scaffold": Scaffold(text="x")}],
    ids=["prefix", "variant", "scaffold"],
)
def test_a_try_that_begins_as_no_harness_can_is_dropped(tmp_path, change):
    tasks = [hs.TASK, replace(hs.TASK, **change)]
    played = hs.play(ScriptedEngine("x"), hs.program(tmp_path, LOOP, timeout_s=60.0), tasks=tasks)
    assert [one is None for one in played.tries] == [False, True]


def test_try_s_is_the_shorter_clock(tmp_path):
    began = time.monotonic()
    played = hs.play(ScriptedEngine("x"), hs.program(tmp_path, SAY + "time.sleep(600)"), try_s=3.0)
    assert played.dropped == 1
    assert time.monotonic() - began < 300


def test_work_that_nobody_wants_any_more_leaves_no_process(tmp_path):
    pid = tmp_path / "pid"
    body = f"open({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    with (
        while_wanted(lambda: not pid.exists() or not pid.read_text()),
        pytest.raises(NotWantedError),
    ):
        hs.play(ScriptedEngine("x"), hs.program(tmp_path, body))
    number = int(pid.read_text())
    assert not alive(number)
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def test_an_engine_that_fails_for_one_prompt_costs_that_try(tmp_path):
    engine = ScriptedEngine("x")
    real = engine.generate

    def frail(prompts, sampling):
        if any(prompt.key == 1 for prompt in prompts):
            raise MemoryError
        return real(prompts, sampling)

    engine.generate = frail
    with structlog.testing.capture_logs() as logs:
        played = hs.play(engine, hs.program(tmp_path, LOOP), tasks=tasks(3))
    assert [one is None for one in played.tries] == [False, True, False]
    assert ended(logs) == [("RolloutError", "dropped", hs.NAME)]


def test_one_that_cannot_be_started_is_left_alone_after_three(tmp_path):
    table = hs.spec(str(tmp_path / "missing"))
    with structlog.testing.capture_logs() as logs:
        played = hs.play(
            ScriptedEngine("x"), table.model_copy(update={"at_once": 1}), tasks=tasks(5)
        )
    assert played.dropped == 5
    assert [error for error, *_ in ended(logs)] == [
        *(["HarnessStartError"] * 3),
        *(["ForeignUnreachableError"] * 2),
    ]


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (Task(environment=hs.NAME, task_id=1_008_000, prefix=("go",)), "PrefixError"),
        (Task(environment=hs.NAME, task_id=1_008_000, variant="other"), "VariantError"),
        (Task(environment=hs.NAME, task_id=-1), "TaskIdError"),
    ],
)
def test_tasks_that_a_harness_cannot_play_are_dropped(task, error, tmp_path):
    with structlog.testing.capture_logs() as logs:
        played = hs.play(ScriptedEngine("x"), hs.program(tmp_path, LOOP), tasks=[task])
    assert played.dropped == 1
    assert ended(logs) == [(error, "dropped", hs.NAME)]


def test_as_an_environment_it_says_what_its_tasks_are(tmp_path):
    table = hs.program(tmp_path, LOOP, tasks={"train": 5, "held_out": 2, "first": 10})
    environment = Catalogue(foreign={hs.NAME: table}).make(hs.NAME)
    assert environment.task_ids(Split.TRAIN) == range(1_008_000, 1_008_005)
    assert environment.reset(1_008_003)[0].startswith('{"index": 13,')
    assert (environment.name, environment.family, environment.max_steps) == (hs.NAME, "test", 8)
    with pytest.raises(EpisodeStateError):
        environment.step("go")
    missing = Catalogue(foreign={hs.NAME: hs.spec("no-such-program")}).make(hs.NAME)
    with pytest.raises(HarnessStartError, match=r"no-such-program.*absolute path"):
        missing.reset(1_008_000)


def test_a_built_in_environment_under_a_harness_s_name_is_refused():
    with pytest.raises(RolloutError, match="does not play itself"):
        run_episodes(
            ScriptedEngine("x"),
            tasks(1),
            temperature=1.0,
            seed=0,
            make_environment=lambda _: make("craft"),
        )


def test_a_bare_name_is_looked_for_on_the_path(tmp_path):
    program = tmp_path / "agent.py"
    program.write_text(hs.PRELUDE + SAY + "report()")
    table = hs.spec("env", sys.executable, str(program))
    assert hs.play(ScriptedEngine("x"), table).trajectories[0].success
