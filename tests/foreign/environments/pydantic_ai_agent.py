"""An agent of the pydantic-ai framework, as its documentation writes one: a tool, and an answer."""

import json
import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

task = json.loads(os.environ["CHORALE_TASK"])
agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"]), instructions="Use the tools.")
asked = []


@agent.tool_plain
def weather(town: str) -> str:
    """The weather of a town."""
    asked.append(town)
    return "rain" if town == "Ulm" else "sun"


result = agent.run_sync(f"Task {task['index']}: how is the weather in Ulm?")
solved = asked == ["Ulm"] and "rain" in result.output
print(json.dumps({"reward": float(solved), "success": solved}))
