"""The OpenEnv adapter against a server that speaks the protocol, and against one that does not."""

from __future__ import annotations

import json
import threading
import time

import pytest
from websockets.sync.server import serve

from evolution.envs.catalogue import Catalogue
from evolution.envs.foreign.foreign import Breaker
from evolution.envs.tasks import Split
from evolution.errors import (
    EpisodeStateError,
    ForeignRefusalError,
    ForeignReplyError,
    ForeignTimeoutError,
    ForeignUnreachableError,
    TaskIdError,
)
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from silo_agent.config import foreign_specs
from tests.kit.evolution.foreign_worlds import (
    Engine,
    begin_and_step,
    obedient,
    observation,
    openenv_server,
)

NAME = "openenv:colour"
TRAIN = 1_008_000


@pytest.fixture
def server():
    with openenv_server() as server:
        yield server


def catalogue(url: str, **keys: object) -> Catalogue:
    table = {
        "url": url,
        "instruction": "answer",
        "max_steps": 3,
        "success": {"reward_at_least": 1.0},
        "observation": ["text"],
        "action": {"message": "{action}"},
        "timeout_s": 5.0,
        **keys,
    }
    return Catalogue(foreign=foreign_specs({NAME: table}))


def play(known: Catalogue, tasks, act=obedient, batch_size=8):
    return run_episodes(
        Engine(act),
        [Task(environment=NAME, task_id=task) for task in tasks],
        temperature=0.0,
        seed=0,
        batch_size=batch_size,
        make_environment=known.make,
    )


def test_episodes_are_played_and_every_session_is_closed(server):
    known = catalogue(server.url)
    played = play(known, range(TRAIN, TRAIN + 12), batch_size=5)
    assert [t.task.task_id for t in played.trajectories] == [*range(TRAIN, TRAIN + 12)]
    assert all(t.success for t in played.trajectories)
    assert [t.steps[0].observation for t in played.trajectories[:3]] == [
        "say red",
        "say green",
        "say blue",
    ]
    assert played.dropped == 0
    seeds = [m["data"]["seed"] for m in server.received if m["type"] == "reset"]
    assert sorted(seeds) == [*range(TRAIN, TRAIN + 12)]
    # One connection for each episode: nothing of one reaches the next.
    assert server.all_closed()
    assert server.opened == 12


def test_an_episode_ends_at_max_steps_without_success(server):
    played = play(catalogue(server.url), [TRAIN], act=lambda text: "nonsense")
    (trajectory,) = played.trajectories
    assert not trajectory.success
    assert len(trajectory.steps) == 3


def test_success_is_the_operators_rule(server):
    known = catalogue(server.url, success={"return_at_least": 1.5})
    assert not play(known, [TRAIN]).trajectories[0].success
    known = catalogue(server.url, success={"return_at_least": 0.5})
    assert play(known, [TRAIN]).trajectories[0].success


def test_words_stand_for_numbered_actions(server):
    known = catalogue(
        server.url,
        actions=["left", "right"],
        action={"message": {"move": "{action}", "fast": True}},
    )
    environment = known.make(NAME)
    environment.reset(TRAIN)
    seen, reward, terminated, truncated, info = environment.step("jump")
    assert info["valid"] is False
    assert seen == "That is no action. Actions: left, right."
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert environment.step("right")[4]["valid"] is True
    environment.close()
    steps = [m["data"] for m in server.received if m["type"] == "step"]
    assert steps == [{"message": {"move": 1, "fast": True}}]


def test_what_the_reset_carries_and_a_number_of_tasks_are_the_operators(server):
    known = catalogue(
        server.url, reset={"difficulty": "easy"}, tasks={"first": 40, "train": 20, "held_out": 6}
    )
    environment = known.make(NAME)
    assert [len(environment.task_ids(split)) for split in Split] == [0, 20, 6]
    for split in (Split.TRAIN, Split.HELD_OUT):
        for task in environment.task_ids(split):
            environment.reset(task)
    environment.close()
    resets = [m["data"] for m in server.received if m["type"] == "reset"]
    assert resets == [{"difficulty": "easy", "seed": seed} for seed in range(40, 66)]
    with pytest.raises(TaskIdError):
        environment.reset(environment.task_ids(Split.TRAIN)[-1] + 1)


HOSTILE = [
    ("oversize", observation("x" * 70_000, 1.0, done=True), ForeignReplyError),
    ("not JSON", "say red", ForeignReplyError),
    ("binary", b"{}", ForeignReplyError),
    ("a list", "[1, 2]", ForeignReplyError),
    ("nested", "[" * 30_000, ForeignReplyError),
    ("another type", json.dumps({"type": "state", "data": {}}), ForeignReplyError),
    ("no data", json.dumps({"type": "observation"}), ForeignReplyError),
    ("no field", json.dumps({"type": "observation", "data": {"done": False}}), ForeignReplyError),
    ("text is an object", observation({"a": 1}, 0.0, done=False), ForeignReplyError),
    ("text is missing", observation(None, 0.0, done=False), ForeignReplyError),
    ("error", json.dumps({"type": "error", "data": {"message": "no"}}), ForeignRefusalError),
]
ON_STEP = [
    ("NaN", '{"type":"observation","data":{"observation":{"text":"x"},"reward":NaN,"done":true}}'),
    ("infinity", observation("x", 1.0, done=True).replace("1.0", "1e999")),
    ("many digits", observation("x", 1.0, done=True).replace("1.0", "9" * 5_000)),
    ("large", observation("x", 1e300, done=True)),
    ("text", observation("x", "1.0", done=True)),
    ("a list", observation("x", [1.0], done=True)),
    ("done is a number", observation("x", 1.0, done=1)),
    ("done is missing", observation("x", 1.0, done=None)),
]


@pytest.mark.parametrize("kind", ["reset", "step"])
@pytest.mark.parametrize(
    ("fault", "expected"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE]
)
def test_a_hostile_answer_costs_its_episode_only(server, kind, fault, expected):
    known = catalogue(server.url, max_message_bytes=65_536)
    server.faults[kind, TRAIN + 1] = fault
    environment = known.make(NAME)
    with pytest.raises(expected):
        begin_and_step(environment, TRAIN + 1, "green")
    with pytest.raises(EpisodeStateError):
        environment.step("green")
    played = play(known, range(TRAIN, TRAIN + 4))
    assert played.dropped == 1
    assert [t.task.task_id - TRAIN for t in played.trajectories if t.success] == [0, 2, 3]


@pytest.mark.parametrize("fault", [s[1] for s in ON_STEP], ids=[s[0] for s in ON_STEP])
def test_a_hostile_reward_or_flag_costs_its_episode_only(server, fault):
    known = catalogue(server.url)
    server.faults["step", TRAIN + 1] = fault
    environment = known.make(NAME)
    environment.reset(TRAIN + 1)
    with pytest.raises(ForeignReplyError):
        environment.step("green")
    played = play(known, range(TRAIN, TRAIN + 4))
    assert played.dropped == 1
    assert sum(t.success for t in played.trajectories) == 3


def test_no_reward_and_true_for_one_are_the_protocols_own(server):
    known = catalogue(server.url)
    environment = known.make(NAME)
    for reward, expected in ((None, 0.0), (True, 1.0), (1, 1.0)):
        server.faults["step", TRAIN] = observation("x", reward, done=True)
        environment.reset(TRAIN)
        assert environment.step("red")[1] == expected
    environment.close()


def test_long_or_broken_text_is_bounded(server):
    environment = catalogue(server.url).make(NAME)
    server.faults["reset", TRAIN] = observation("a\ud800" * 5_000, 0.0, done=False)
    seen, _ = environment.reset(TRAIN)
    assert seen == "a?" * 2_000
    environment.close()


def test_several_fields_are_shown_by_name(server):
    environment = catalogue(server.url, observation=["text", "legal", "left"]).make(NAME)
    shown = {"text": "go", "legal": [0, 3], "left": 2.5, "secret": "no"}
    data = {"observation": shown, "reward": None, "done": False}
    server.faults["reset", TRAIN] = json.dumps({"type": "observation", "data": data})
    assert environment.reset(TRAIN)[0] == "text: go\nlegal: 0, 3\nleft: 2.5"
    environment.close()


@pytest.mark.parametrize("kind", ["reset", "step"])
def test_a_server_that_drops_the_connection_costs_the_episode(server, kind):
    known = catalogue(server.url)
    server.faults[kind, TRAIN + 1] = lambda connection: connection.close_socket()
    played = play(known, range(TRAIN, TRAIN + 4))
    assert played.dropped == 1
    assert sum(t.success for t in played.trajectories) == 3


def test_a_server_that_hangs_costs_three_timeouts_and_not_one_for_each_episode(server):
    known = catalogue(server.url, timeout_s=1.0)
    server.faults["step", None] = server.hang
    started = time.monotonic()
    played = play(known, range(TRAIN, TRAIN + 40), batch_size=40)
    assert played.dropped == 40
    assert time.monotonic() - started < 20
    environment = known.make(NAME)
    with pytest.raises(ForeignUnreachableError, match="left alone"):
        environment.reset(TRAIN)


def test_a_hang_is_a_timeout(server):
    environment = catalogue(server.url, timeout_s=0.2).make(NAME)
    server.faults["reset", None] = server.hang
    with pytest.raises(ForeignTimeoutError):
        environment.reset(TRAIN)


def test_no_server_and_a_redirecting_one_are_unreachable(server):
    environment = catalogue("ws://127.0.0.1:1/ws").make(NAME)
    with pytest.raises(ForeignUnreachableError):
        environment.reset(TRAIN)

    def elsewhere(connection, request):
        del request
        answer = connection.respond(302, "")
        answer.headers["Location"] = server.url
        return answer

    with serve(lambda c: None, "127.0.0.1", 0, process_request=elsewhere) as redirecting:
        thread = threading.Thread(target=redirecting.serve_forever)
        thread.start()
        port = redirecting.socket.getsockname()[1]
        environment = catalogue(f"ws://127.0.0.1:{port}/ws").make(NAME)
        with pytest.raises(ForeignUnreachableError, match="status 302"):
            environment.reset(TRAIN)
        redirecting.shutdown()
        thread.join()
    assert server.opened == 0


def test_where_units_are_protected_no_environment_is_left_alone(server):
    """Or one task that makes a server silent would cost the next tasks their episodes."""
    known = catalogue(server.url)
    apart = known.apart()
    for _ in range(3):
        apart.make(NAME)._breaker.note(answered=False)
        known.make(NAME)._breaker.note(answered=False)
    with pytest.raises(ForeignUnreachableError):
        known.make(NAME).reset(TRAIN)
    environment = apart.make(NAME)
    environment.reset(TRAIN)
    environment.close()


def test_after_a_pause_one_failure_is_enough_to_be_left_alone_again():
    now = [0.0]
    breaker = Breaker(failures=3, pause_s=60.0, clock=lambda: now[0])
    for _ in range(3):
        breaker.require_closed()
        breaker.note(answered=False)
    with pytest.raises(ForeignUnreachableError):
        breaker.require_closed()
    now[0] = 61.0
    breaker.require_closed()
    breaker.note(answered=False)
    with pytest.raises(ForeignUnreachableError):
        breaker.require_closed()
    now[0] = 122.0
    breaker.note(answered=True)
    breaker.note(answered=False)
    breaker.require_closed()
