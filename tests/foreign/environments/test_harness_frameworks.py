"""An agent of a framework that others wrote, behind the gateway: pydantic-ai, with its own client.

Skipped where no model is installed: the layout is a tokenizer's.
"""

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("pydantic_ai")

from tests.kit.evolution import harnesses as hs
from tests.kit.evolution.scripted_engine import (
    PLAIN,
    WITH_TOOLS,
    Recorded,
    ScriptedEngine,
    five_fields,
    recorded_fields,
)

AGENT = Path(__file__).parent / "pydantic_ai_agent.py"
CALL = '<tool_call>{"name": "weather", "arguments": {"town": "Ulm"}}</tool_call>'


@pytest.mark.parametrize("template", [PLAIN, WITH_TOOLS], ids=["plain", "native"])
def test_an_agent_with_a_tool_is_one_trace(template):
    engine = Recorded(ScriptedEngine(CALL, "There is rain.", template=template))
    table = hs.spec(sys.executable, str(AGENT), success={"info": "success"}, timeout_s=120.0)
    played = hs.play(engine, table, max_new_tokens=200)
    (trajectory,) = played.trajectories
    assert trajectory.success
    assert len(trajectory.steps) == 2
    assert five_fields(trajectory) == recorded_fields(engine.calls, 1.0)


def test_without_the_call_it_is_no_success():
    table = hs.spec(sys.executable, str(AGENT), success={"info": "success"}, timeout_s=120.0)
    (trajectory,) = hs.play(ScriptedEngine("Sun."), table, max_new_tokens=200).trajectories
    assert not trajectory.success
    assert (trajectory.reward, len(trajectory.steps)) == (0.0, 1)
