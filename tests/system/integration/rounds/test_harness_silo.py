"""A silo whose agent is somebody else's takes part in a masked federation beside built-in ones.

The agent knows the ``openai`` package alone. By its task's number it plays, or
it hangs, dies, edits its history, asks for another model or lies about its reward: those tries are
ended, named and counted, and both rounds are finished with all four silos in their sums.

Not failures: how much is learned in two small rounds. Failures: a round without the harness's silo,
a try that misbehaved and is remembered, a process that is left, a word of the harness in a log.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from evolution.memory.memory import Memory
from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from lab.demo.choices import Privacy, Scenario
from lab.demo.run import BASE_MODEL
from lab.demo.scenario import SILOS, DemoSettings, plan_toml, silo_toml
from lab.loopback import LoopbackFederation
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("harness_silo"), pytest.mark.long]

NAME = "harness:first-word"
HOST = SILOS[3]
MARK = "zqharness81w"
AGENT = """
import json, os, sys, time
from openai import OpenAI

task = json.loads(os.environ["CHORALE_TASK"])
client, model = OpenAI(), os.environ["OPENAI_MODEL"]
first = {"role": "user", "content": "goal plank . have nothing . here 4 log ."}
messages = [{"role": "system", "content": task["instruction"]}, first]
print("zqharness81w", task)
print("zqharness81w", task, file=sys.stderr)

def ask():
    done = client.chat.completions.create(model=model, messages=messages)
    messages.append(done.choices[0].message)
    messages.append({"role": "user", "content": "goal plank . have 2 log . here 2 log ."})
    return done.choices[0].message.content or ""

wanted = "craft" if task["index"] % 2 else "get"
reward = float(ask().startswith(wanted))
how = task["index"]
if how == 0:
    # One try of a round hangs; several in a row, and the harness would be left alone for a minute.
    mark = os.path.join(os.path.dirname(__file__), "hung-" + model)
    try:
        os.mkdir(mark)
        time.sleep(600)
    except FileExistsError:
        pass
elif how == 1:
    sys.exit(3)
elif how == 2:
    messages[1] = {"role": "user", "content": "zqharness81w"}
elif how == 3:
    model = "gpt-5"
elif how == 4:
    reward = 2.0
ask()
print(json.dumps({"reward": reward}))
"""
ERRORS = {
    "HarnessTimeoutError": 2,
    "HarnessExitError": 8,
    "HarnessHistoryError": 8,
    "HarnessModelError": 8,
    "HarnessReportError": 8,
}
"""In two rounds."""


@pytest.fixture
def loopback(tmp_path):
    with LoopbackFederation(directory=tmp_path) as made:
        made.found()
        made.start_coordinator()
        for silo_id in SILOS:
            made.enrol(silo_id, base_model=BASE_MODEL)
        made.publish_roster(colluding=1)
        yield made


def written(loopback, agent):
    """Plan and first adapter; each silo's files as ``policy init`` proposes them."""
    settings = DemoSettings(
        scenario=Scenario.ENVIRONMENTS, privacy=Privacy.NONE, rounds=2, episodes=32, held_out=4
    )
    toml = plan_toml(settings, base=str(BASE_MODEL), base_sha256=base_sha256(BASE_MODEL))
    assert toml.count('"babyai"') == 1
    toml = toml.replace('"babyai"', f'"{NAME}"')
    plan, adapter = (loopback.directory / name for name in ("plan.toml", "first.safetensors"))
    plan.write_text(toml.replace("accept_low_cosine = false", "accept_low_cosine = true"))
    recipe = settings.recipe
    adapter.write_bytes(
        encode_adapter(initial_adapter(BASE_MODEL, recipe.lora_rank, recipe.lora_alpha, 0))
    )
    for index, silo_id in enumerate(SILOS):
        directory = loopback.silo_dir(silo_id)
        text = silo_toml(settings, index, base_model=str(BASE_MODEL.absolute()))
        if silo_id == HOST:
            text = (
                text.replace('"babyai"', f'"{NAME}"')
                + f"""
[foreign."{NAME}"]
command = ["{sys.executable}", "{agent}"]
instruction = "craft the goal . actions : get 2 log . craft plank ."
max_steps = 4
success = {{ reward_at_least = 1.0 }}
tasks = {{ train = 8, held_out = 4 }}
timeout_s = 40.0
at_once = 4
"""
            )
        (directory / "silo.toml").write_text(text)
        (directory / "policy.toml").unlink(missing_ok=True)
        loopback.silo(
            *("policy", "init", "--plan", str(plan), "--data", str(directory)),
            "--accept-no-privacy",
        )
    return plan, adapter


def left_behind(agent):
    """Processes of the harness that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(agent).encode() in command:
                found.append(int(entry.name))
    return found


@pytest.mark.timeout(900)
def test_an_agent_of_the_openai_package_takes_part(loopback, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    plan, adapter = written(loopback, agent)
    said = loopback.silo("doctor", "--data", str(loopback.silo_dir(HOST)))
    assert NAME in json.dumps(said)
    for silo_id in SILOS:
        loopback.start_silo(silo_id)
    for silo_id in SILOS:
        until(lambda one=silo_id: "coordinator_version" in loopback.log(one), f"{silo_id} calls")
    run_id = loopback.start_run(plan, adapter, token="harness")
    last, rounds = cf.watch_to_end(loopback, run_id)
    assert last["run"]["state"] == "finished", last
    assert [done["outcome"] for done in rounds] == ["aggregated", "aggregated"]
    for done in rounds:
        assert sorted(done["survivors"]) == sorted(SILOS), done

    log = loopback.log(HOST)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    ended = [line for line in lines if line["event"] == "harness_ended"]
    assert Counter(line["error"] for line in ended) == ERRORS
    assert {line["environment"] for line in ended} == {NAME}
    assert MARK not in log
    for silo_id in SILOS[:3]:
        assert "harness_ended" not in loopback.log(silo_id)

    (path,) = (loopback.silo_dir(HOST) / "evolve").rglob("successes.sqlite")
    played = []
    with Memory(path) as memory:
        for number in (1, 2):
            played += [t for g in memory.groups(round_index=number) for t in g.trajectories]
    # Of eight tasks with four tries each, one hangs once, four never end well.
    assert len(played) == 2 * (3 + 3 * 4)
    for trajectory in played:
        assert trajectory.task.environment == NAME
        # Tries that misbehaved left nothing behind.
        assert trajectory.task.task_id % 8 in {0, 5, 6, 7}
        assert len(trajectory.steps) == 2
        assert trajectory.reward in {0.0, 1.0}
        assert len(trajectory.adapter_sha256) == 64
    assert any(t.success for t in played)
    books = (loopback.silo_dir(HOST) / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["metrics"]["dropped"] for line in books] == [17.0, 17.0]
    assert left_behind(agent) == []
