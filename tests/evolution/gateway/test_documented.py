"""The agent and the table of docs/gateway.md, played."""

import sys

from silo_agent.config import SiloConfig
from tests.kit.evolution import harnesses as hs
from tests.kit.evolution.scripted_engine import ScriptedEngine
from tests.kit.paths import ROOT

TEXT = (ROOT / "docs" / "gateway.md").read_text()


def block(language):
    return TEXT.split(f"```{language}\n")[1].partition("```")[0]


def test_the_agent_plays_and_learns_from_what_it_is_told(tmp_path):
    agent, config = tmp_path / "agent.py", tmp_path / "silo.toml"
    agent.write_text(block("python"))
    table = block("toml")
    assert table.count('"/opt/plurals/bin/python", "/opt/plurals/agent.py"') == 1
    config.write_text(
        table.replace(
            '"/opt/plurals/bin/python", "/opt/plurals/agent.py"', f'"{sys.executable}", "{agent}"'
        )
    )
    spec = SiloConfig.load(tmp_path).foreign["harness:plurals"]
    # Of four words in their order the third is a leaf.
    tasks = [hs.Task(environment=spec.name, task_id=1_008_002 + 4 * n) for n in range(2)]
    engine = ScriptedEngine("leafs", "leaves")
    first, second = hs.play(engine, spec, tasks=tasks, max_new_tokens=100).tries
    assert first.success
    assert second.success
    assert [step.action for step in first.steps] == ["leafs", "leaves"]
    assert first.steps[1].observation == "No. Try again."
    (never,) = hs.play(ScriptedEngine("leafs"), spec, tasks=tasks[:1]).tries
    assert (never.success, never.truncated, len(never.steps)) == (False, False, 3)
