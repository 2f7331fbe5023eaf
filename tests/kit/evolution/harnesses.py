"""Harnesses for tests: what ``silo.toml`` says of them, sessions, and programs to run."""

from __future__ import annotations

import sys
from contextlib import contextmanager

from evolution.envs.catalogue import Catalogue
from evolution.envs.foreign.spec import HarnessSpec
from evolution.gateway.endpoint import Endpoint
from evolution.gateway.layout import Layout
from evolution.gateway.session import Session
from evolution.rollout.engine import Sampling
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from tests.kit.evolution.scripted_engine import Recorded, asker

NAME = "harness:test"
TASK = Task(environment=NAME, task_id=1_008_000)
# Without a package: what a request costs is not to decide how long a test takes.
PRELUDE = """
import json, os, sys, time, urllib.error, urllib.request
BASE, TOKEN, MODEL = (os.environ["OPENAI_" + n] for n in ("BASE_URL", "API_KEY", "MODEL"))
TASK = json.loads(os.environ["CHORALE_TASK"])
def post(path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data, {"Authorization": "Bearer " + TOKEN})
    return json.loads(urllib.request.urlopen(request).read())
def chat(messages, **more):
    body = {"model": MODEL, "messages": messages, **more}
    return post("/chat/completions", body)["choices"][0]["message"]
def report(reward=1.0, **more):
    print(json.dumps({"reward": reward, **more}))
def user(text):
    return {"role": "user", "content": text}
"""


def spec(*command, **more):
    table = {
        "name": NAME,
        "family": "test",
        "command": command or ("/bin/true",),
        "max_steps": 8,
        "success": {"reward_at_least": 1.0},
        **more,
    }
    return HarnessSpec.model_validate(table, strict=False)


def program(directory, body, *, prelude=PRELUDE, **more):
    """The spec of a Python program."""
    path = directory / "harness.py"
    path.write_text(prelude + body)
    # Without site packages, unless it brings its own imports: it starts in a fraction of the time.
    bare = ("-I", "-S") if prelude else ()
    return spec(sys.executable, *bare, str(path), **more)


def play(engine, table, *, tasks=(TASK,), temperature=1.0, max_new_tokens=6, **more):
    return run_episodes(
        engine,
        tasks,
        temperature=temperature,
        seed=3,
        max_new_tokens=max_new_tokens,
        make_environment=Catalogue(foreign={table.name: table}).make,
        **more,
    )


def session(engine, table=None, *, temperature=1.0, max_new_tokens=2_000, key=5):
    """A session whose questions are answered on the spot, and what the engine saw."""
    recorded = engine if isinstance(engine, Recorded) else Recorded(engine)
    made = Session(
        spec=spec() if table is None else table,
        task=TASK,
        key=key,
        sampling=Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=3),
        layout=Layout(engine.chat),
        turn_end_id=engine.chat.turn_end_id,
        context_limit=engine.context_limit,
        adapter=engine.adapter_version,
        ask=asker(recorded),
    )
    return made, recorded


@contextmanager
def client(made, **more):
    """The real client of a session's endpoint."""
    import openai

    with Endpoint(made) as endpoint:
        options = {"base_url": endpoint.url, "api_key": endpoint.token, "max_retries": 0, **more}
        with openai.OpenAI(**options) as opened:
            yield opened
