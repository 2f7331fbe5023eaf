"""The AgentGym adapter against servers in each of its dialects, and against hostile ones."""

from __future__ import annotations

import json
import time

import pytest

from evolution.envs.catalogue import Catalogue
from evolution.envs.tasks import Split
from evolution.errors import (
    ForeignRefusalError,
    ForeignReplyError,
    ForeignTimeoutError,
    ForeignUnreachableError,
)
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from silo_agent.config import foreign_specs
from tests.kit.evolution.foreign_worlds import (
    Engine,
    agentgym_server,
    begin_and_step,
    obedient,
    reply,
)

NAME = "agentgym:colour"
TRAIN = 1_008_000


def catalogue(url: str, dialect: str = "standard", **keys: object) -> Catalogue:
    table = {
        "url": url,
        "server": dialect,
        "instruction": "answer",
        "max_steps": 3,
        "success": {"reward_at_least": 1.0},
        "tasks": {"train": 20, "held_out": 6},
        "timeout_s": 5.0,
        **keys,
    }
    return Catalogue(foreign=foreign_specs({NAME: table}))


def play(known: Catalogue, tasks, act=obedient, batch_size=4):
    return run_episodes(
        Engine(act),
        [Task(environment=NAME, task_id=task) for task in tasks],
        temperature=0.0,
        seed=0,
        batch_size=batch_size,
        make_environment=known.make,
    )


@pytest.fixture
def server():
    with agentgym_server("standard") as server:
        yield server


@pytest.mark.parametrize(
    ("dialect", "task"),
    [
        ("babyai", "data_idx"),
        ("maze", "game"),
        ("standard", "data_idx"),
        ("textcraft", "data_idx"),
        ("webshop", "session_id"),
        ("wordle", "seed"),
    ],
)
def test_every_dialect_is_spoken_and_nothing_stays_open(dialect, task):
    with agentgym_server(dialect) as server:
        played = play(catalogue(server.url, dialect), range(TRAIN, TRAIN + 9))
        assert played.dropped == 0
        assert [t.success for t in played.trajectories] == [True] * 9
        assert [t.steps[0].observation for t in played.trajectories[:2]] == ["say red", "say green"]
        routes = [route for route, _ in server.requests]
        # Four episodes at once: four environments, played again and again, all closed.
        assert (routes.count("create"), routes.count("reset"), routes.count("close")) == (4, 9, 4)
        # Those that begin together are asked together.
        assert sorted(b[task] for r, b in server.requests if r == "reset") == [*range(9)]
        assert server.games == {}


def test_the_path_of_a_mounted_server_is_kept(server):
    server.faults["maze/create"] = lambda handler: reply(handler, b'{"id": 3}')
    server.faults["maze/reset"] = lambda handler: reply(handler, b'{"observation": "go"}')
    server.faults["maze/close"] = lambda handler: reply(handler, b"{}")
    environment = catalogue(f"{server.url}/maze/").make(NAME)
    assert environment.reset(TRAIN)[0] == "go"
    environment.close()
    assert [r for r, _ in server.requests] == ["maze/create", "maze/reset", "maze/close"]


def test_few_tasks_are_dealt_out_without_overlap(server):
    environment = catalogue(server.url, "maze").make(NAME)
    assert [len(environment.task_ids(split)) for split in Split] == [0, 20, 6]
    listed = {"train": [5, 9, 2], "held_out": [1]}
    environment = catalogue(server.url, tasks=listed).make(NAME)
    for split in (Split.TRAIN, Split.HELD_OUT):
        for task in environment.task_ids(split):
            environment.reset(task)
    environment.close()
    assert [b["data_idx"] for r, b in server.requests if r == "reset"] == [5, 9, 2, 1]


def test_a_server_without_a_close_route_is_left_quietly(server):
    server.faults["close"] = lambda handler: reply(handler, b"{}", status=404)
    environment = catalogue(server.url).make(NAME)
    environment.reset(TRAIN)
    environment.close()
    assert [r for r, _ in server.requests] == ["create", "reset", "close"]
    server.faults["close"] = lambda handler: reply(handler, b"{}", status=500)
    environment.reset(TRAIN)
    with pytest.raises(ForeignRefusalError, match="status 500"):
        environment.close()


def answering(content: bytes, status: int = 200, **headers: str):
    return lambda handler: reply(handler, content, status, **headers)


def dropping(handler):
    handler.close_connection = True


def chunked_forever(handler):
    handler.send_response(200)
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"1000\r\n" + b" " * 4096 + b"\r\n")
    except OSError:
        handler.close_connection = True


def body(**keys: object) -> bytes:
    return json.dumps({"observation": "x", "reward": 1.0, "done": True, **keys}).encode()


HOSTILE = [
    ("an error with status 200", answering(b'{"error": "no"}'), ForeignRefusalError),
    ("status 500", answering(b"oh", 500), ForeignRefusalError),
    ("a redirect", answering(b"", 302, location="http://127.0.0.1:1/"), ForeignRefusalError),
    ("oversize", answering(b" " * 70_000), ForeignReplyError),
    ("endless", chunked_forever, ForeignReplyError),
    ("not JSON", answering(b"say red"), ForeignReplyError),
    ("not UTF-8", answering(b'"\xff\xfe"'), ForeignReplyError),
    ("empty", answering(b""), ForeignReplyError),
    ("null", answering(b"null"), ForeignReplyError),
    ("no field", answering(b"{}"), ForeignReplyError),
    ("text is an object", answering(body(observation={})), ForeignReplyError),
    ("dropped", dropping, ForeignUnreachableError),
]
ON_STEP = [
    ("NaN", body().replace(b"1.0", b"NaN")),
    ("infinity", body().replace(b"1.0", b"-Infinity")),
    ("text", body(reward="1")),
    ("none", body(reward=None)),
    ("done is text", body(done="true")),
]


@pytest.mark.parametrize("route", ["reset", "step"])
@pytest.mark.parametrize(
    ("fault", "expected"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE]
)
def test_a_hostile_answer_ends_the_episode_and_closes_the_environment(
    server, route, fault, expected
):
    known = catalogue(server.url, max_message_bytes=65_536)
    environment = known.make(NAME)
    server.faults[route] = fault
    with pytest.raises(expected):
        begin_and_step(environment, TRAIN, "red")
    assert server.games == {}
    del server.faults[route]
    assert play(known, [TRAIN]).trajectories[0].success


@pytest.mark.parametrize("content", [s[1] for s in ON_STEP], ids=[s[0] for s in ON_STEP])
def test_a_hostile_reward_or_flag_ends_the_episode(server, content):
    environment = catalogue(server.url).make(NAME)
    environment.reset(TRAIN)
    server.faults["step"] = answering(content)
    with pytest.raises(ForeignReplyError):
        environment.step("red")


@pytest.mark.parametrize("content", [b'{"id": "7"}', b"-1", b"true", b"[3]", b'{"id": 1e3}'])
def test_an_unusable_id_is_refused(server, content):
    server.faults["create"] = answering(content)
    with pytest.raises(ForeignReplyError):
        catalogue(server.url).make(NAME).reset(TRAIN)


def test_a_bomb_is_not_unpacked(server):
    import gzip

    packed = gzip.compress(body(observation="x" * 10_000_000))
    assert len(packed) < 65_536
    environment = catalogue(server.url, max_message_bytes=65_536).make(NAME)
    environment.reset(TRAIN)
    server.faults["step"] = answering(packed, **{"content-encoding": "gzip"})
    with pytest.raises(ForeignReplyError):
        environment.step("red")


@pytest.mark.parametrize("part", ["headers", "body"])
def test_a_server_that_sends_byte_by_byte_is_a_timeout(server, part):
    def dripping(handler):
        try:
            if part == "body":
                handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000\r\n\r\n")
            else:
                handler.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
            for _ in range(2000):
                handler.wfile.write(b" ")
                if server.release.wait(0.05):
                    break
        except OSError:
            pass
        handler.close_connection = True

    server.faults["reset"] = dripping
    environment = catalogue(server.url, timeout_s=0.3).make(NAME)
    started = time.monotonic()
    with pytest.raises(ForeignTimeoutError):
        environment.reset(TRAIN)
    assert time.monotonic() - started < 30


def test_a_server_that_hangs_does_not_hold_the_round_up(server):
    server.faults["reset"] = lambda handler: server.release.wait(100)
    started = time.monotonic()
    played = play(catalogue(server.url, timeout_s=0.2), range(TRAIN, TRAIN + 20), batch_size=20)
    assert played.dropped == 20
    assert time.monotonic() - started < 30
