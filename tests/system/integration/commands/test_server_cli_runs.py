"""``chorale run`` against a coordinator's real ports: what it sends, what it refuses to send."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from chorale.v1 import admin_pb2
from federation.adapter.encoding import decode_adapter, encode_adapter
from federation.adapter.initial import initial_adapter
from federation.adapter.layout import Layout
from federation.adapter.shapes import shape_from_config, shape_of
from federation.adapter.value_head import VALUE_HEAD
from federation.plan.negotiation import Amended, Offer, amend
from federation.plan.read import read_plan
from federation.wire import offer_to_proto
from ops.cli.envelope import run_app
from server.cli.main import app
from tests.kit.paths import ROOT
from tests.kit.processes.server_harness import FEDERATION

pytestmark = pytest.mark.xdist_group("server_cli_runs")

EXAMPLES = ROOT / "deploy" / "examples"
BASE = ROOT / "lab" / "base_model"
PLAN = EXAMPLES / "plan-silo-dp.toml"
RANK = read_plan(PLAN.read_bytes()).model.lora_rank


@pytest.fixture
def chorale(coordinator, monkeypatch, capsys):
    """Run a command here; exit code, envelope or lines, and what is said besides."""

    def call(*arguments, output="json"):
        line = ["chorale", *map(str, arguments)]
        line += ["--data", str(coordinator.data_dir), "--format", output]
        monkeypatch.setattr("sys.argv", line)
        code = 0
        try:
            run_app(app)
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        answer = json.loads(captured.out) if output == "json" else captured.out
        return code, answer, captured.err

    coordinator.conductor.started.clear()
    coordinator.conductor.asked.clear()
    coordinator.conductor.verdicts, coordinator.conductor.quorum = (), 0
    coordinator.conductor.amended_plan, coordinator.conductor.not_amended = b"", ()
    coordinator.conductor.negotiated.clear()
    return call


def edited(tmp_path, *changes, base=PLAN):
    text = base.read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def started(coordinator):
    (sent,) = coordinator.conductor.started
    return sent


def test_without_an_adapter_the_first_one_is_made_from_the_base(
    coordinator, chorale, monkeypatch, tmp_path
):
    monkeypatch.chdir(ROOT)
    plan = edited(tmp_path, ("[evolve]", "[evolve]\nseed = 11"))
    code, answer, prose = chorale("run", "start", plan, "--submit-token", "first")
    assert code == 0, prose
    assert answer["data"] == {"run_id": "run-1", "behind": ""}
    assert "A drawn by seed 11, B = 0, from lab/base_model/config.json" in prose
    sent_plan, adapter, token = started(coordinator)
    assert (sent_plan, token) == (plan.read_bytes(), "first")
    shape = shape_from_config((BASE / "config.json").read_bytes())
    expected = initial_adapter(shape, rank=RANK, seed=11)
    found = decode_adapter(adapter, max_bytes=1 << 26)
    assert found.keys() == expected.keys()
    for name, part in expected.items():
        assert found[name].tobytes() == part.tobytes()
    # Asked for again it is the same bytes, so a retry with the same token is the same request.
    coordinator.conductor.started.clear()
    chorale("run", "start", plan, "--submit-token", "first")
    assert started(coordinator)[1] == adapter


def test_a_plan_that_federates_its_value_head_starts_with_one_and_counts_it(
    coordinator, chorale, monkeypatch, tmp_path
):
    monkeypatch.chdir(ROOT)
    method = [line for line in PLAN.read_text().splitlines() if line.startswith("method = ")]
    critic = (
        'method = "ppo"\nnominal_tokens = 8\n'
        'parts = { objective = { name = "ppo", value_head = "federated" } }'
    )
    plan = edited(
        tmp_path, (method[0], critic), (f"{method[1]}\ngauge = true", 'method = "fedavg"')
    )
    code, _, prose = chorale("run", "start", plan)
    assert code == 0, prose
    shape = shape_from_config((BASE / "config.json").read_bytes())
    found = decode_adapter(started(coordinator)[1], max_bytes=1 << 26)
    layout = shape.lora_layout(RANK, value_head=True)
    assert Layout.from_tensors(found).sha256 == layout.sha256
    assert not found[VALUE_HEAD].any()
    # Neither a dry run with an adapter that lacks it, nor one that has it for a plan that does not.
    adapter = tmp_path / "initial.safetensors"
    for text, head in ((plan, False), (PLAN, True)):
        made = initial_adapter(shape, rank=RANK, seed=0, value_head=head)
        adapter.write_bytes(encode_adapter(made))
        arguments = ("--silos", 10, "--colluding", 1, "--adapter", adapter)
        code, answer, _ = chorale("run", "plan", text, *arguments)
        assert code == 4
        assert VALUE_HEAD in answer["message"]


@pytest.mark.parametrize("given", [BASE, BASE / "config.json"])
def test_the_base_may_be_named(coordinator, chorale, monkeypatch, tmp_path, given):
    monkeypatch.chdir(tmp_path)
    code, _, prose = chorale("run", "start", PLAN, "--base-config", given)
    assert code == 0, prose
    shape = shape_from_config((BASE / "config.json").read_bytes())
    found = Layout.from_tensors(decode_adapter(started(coordinator)[1], max_bytes=1 << 26))
    assert found.sha256 == shape.lora_layout(RANK).sha256


def test_a_published_base_needs_no_file(coordinator, chorale, tmp_path):
    plan = edited(
        tmp_path,
        ('"lab/base_model"', '"Qwen/Qwen2.5-0.5B-Instruct"'),
        (f"lora_rank = {RANK}", "lora_rank = 1"),
    )
    code, _, prose = chorale("run", "start", plan)
    assert code == 0, prose
    assert "from the published shape of Qwen/Qwen2.5-0.5B-Instruct" in prose
    found = Layout.from_tensors(decode_adapter(started(coordinator)[1], max_bytes=1 << 26))
    assert found.sha256 == shape_of("Qwen/Qwen2.5-0.5B").lora_layout(1).sha256


@pytest.mark.parametrize("base", ["none", "no/such/place", "x" * 512])
def test_an_unknown_base_asks_for_what_is_missing(coordinator, chorale, tmp_path, base):
    plan = edited(tmp_path, ('"lab/base_model"', f'"{base}"'))
    code, answer, _ = chorale("run", "start", plan)
    assert (code, answer["error_code"]) == (4, "adapter_needed")
    for word in ("--base-config", "--adapter", "chorale-lab adapter init"):
        assert word in answer["next_step"]
    assert coordinator.conductor.started == []


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{", "federation_refused"),
        ('{"model_type": "mixtral"}', "federation_refused"),
        (None, "file"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused(coordinator, chorale, tmp_path, content, error):
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    code, answer, _ = chorale("run", "start", PLAN, "--base-config", file)
    assert (code, answer["error_code"]) == (4, error)
    assert answer["hint"]
    assert coordinator.conductor.started == []


def test_a_run_is_of_the_federation_that_is_named(coordinator, chorale):
    given = ("--base-config", BASE)
    assert chorale("run", "start", PLAN, *given, "-f", FEDERATION)[0] == 0
    coordinator.conductor.started.clear()
    for command in (
        ("run", "start", PLAN, *given, "--federation", "other"),
        ("run", "list", "-f", "other"),
        ("run", "plan", PLAN, "--silos", 10, "--colluding", 1, *given, "-f", "other"),
    ):
        code, answer, _ = chorale(*command)
        assert (code, answer["error_code"]) == (4, "federation_unknown"), answer
        assert FEDERATION in answer["message"]
        assert "other" in answer["message"]
    assert coordinator.conductor.started == []
    code, answer, _ = chorale("run", "list", "-f", FEDERATION)
    assert (code, answer["data"]) == (0, {"runs": []})


def test_a_dry_run_takes_the_size_from_the_base(chorale, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = EXAMPLES / "plan-record-distributed.toml"
    rank = read_plan(plan.read_bytes()).model.lora_rank
    adapter = tmp_path / "initial.safetensors"
    shape = shape_from_config((BASE / "config.json").read_bytes())
    adapter.write_bytes(encode_adapter(initial_adapter(shape, rank=rank, seed=0)))
    arguments = ("run", "plan", plan, "--silos", 10, "--colluding", 1)
    code, answer, prose = chorale(*arguments, "--base-config", BASE, "-f", FEDERATION)
    assert code == 0, prose
    assert answer["data"]["memory"]["parameters"] == shape.parameters
    by_adapter = chorale(*arguments, "--adapter", adapter)[1]["data"]
    assert by_adapter.pop("memory") is None
    # The plan names no model, which is said in other words where there is one to compare with.
    assert all("digest" in said.pop("warnings")[0] for said in (by_adapter, answer["data"]))
    assert by_adapter.items() <= answer["data"].items()


def test_a_dry_run_asks_the_terms_of_the_federation(coordinator, chorale, monkeypatch):
    table = type(coordinator.store.federation)
    terms = replace(coordinator.store.federation.current(), epsilon_cap=1.0)
    monkeypatch.setattr(table, "current", lambda _: terms)
    plan = EXAMPLES / "plan-record-distributed.toml"
    arguments = ("run", "plan", plan, "--silos", 10, "--colluding", 1, "--base-config", BASE)
    assert chorale(*arguments)[0] == 0
    code, answer, _ = chorale(*arguments, "-f", FEDERATION)
    assert (code, answer["error_code"]) == (4, "plan_refused")
    assert (
        "privacy.epsilon_cap: the plan states 8, the federation agreed on at most 1"
        in (answer["message"])
    )


def test_pausing_and_resuming_say_what_follows(coordinator, chorale):
    code, answer, prose = chorale("run", "pause", "run-1")
    assert (code, answer["data"]) == (0, {"run_id": "run-1", "state": "paused"})
    assert "next: chorale run resume run-1" in prose
    code, answer, prose = chorale("run", "resume", "run-1")
    assert (code, answer["data"]) == (0, {"run_id": "run-1", "behind": "run-0"})
    shown = chorale("run", "resume", "run-1", output="text")
    said = "next: chorale run watch run-1\n"
    assert shown == (0, "run-1 goes on when run-0 is over\n", said)
    assert coordinator.conductor.paused == ["run-1"]
    assert coordinator.conductor.resumed == ["run-1", "run-1"]


def says(coordinator, quorum, *verdicts):
    """What the silos say when they are asked."""
    coordinator.conductor.quorum = quorum
    coordinator.conductor.verdicts = tuple(
        admin_pb2.SiloVerdict(silo_id=f"silo-{number}", verdict=verdict, rule=rule, reason=reason)
        for number, (verdict, rule, reason) in enumerate(verdicts)
    )


ACCEPTS = ("accept", "", "")
REFUSES = ("refuse", "clip", "the site's policy does not allow so large a clip")
WAITS = ("waits_for_approval", "", "")
OLDER = ("cannot_say", "", "")
AWAY = ("absent", "", "")


def test_a_start_asks_under_its_own_token_and_needs_a_quorum_of_accepts(coordinator, chorale):
    start = ("run", "start", PLAN, "--base-config", BASE, "--submit-token", "mine", "--await-silos")
    says(coordinator, 3, ACCEPTS, REFUSES, ACCEPTS, WAITS, OLDER)
    code, answer, _ = chorale(*start)
    assert (code, answer["error_code"]) == (4, "preflight_refused")
    assert coordinator.conductor.asked == [(PLAN.read_bytes(), "mine")]
    assert coordinator.conductor.started == []
    said = answer["message"]
    assert "a round opens with 3 ready silos, and 2 of 5 accept this plan" in said
    assert "silo-1: the site's policy does not allow so large a clip (rule clip)" in said
    assert "silo-4: cannot say (older release)" in said
    assert "1 wait for an operator" in answer["hint"]
    assert "--await-approval" in answer["hint"]
    assert (answer["data"]["accepts"], answer["data"]["waits_for_approval"]) == (2, 1)
    # The admin may know better, and says so.
    coordinator.conductor.asked.clear()
    assert chorale(*start, "--without-preflight")[0] == 0
    assert coordinator.conductor.asked == []
    assert started(coordinator)[2] == "mine"


@pytest.mark.parametrize(
    ("verdicts", "awaits", "code"),
    [
        ((ACCEPTS, ACCEPTS, ACCEPTS, REFUSES), (), 0),
        ((ACCEPTS, ACCEPTS, AWAY, WAITS), (), 4),
        ((ACCEPTS, ACCEPTS, AWAY, REFUSES), ("--await-silos",), 0),
        ((ACCEPTS, ACCEPTS, WAITS, OLDER), ("--await-silos",), 4),
        ((ACCEPTS, ACCEPTS, WAITS, OLDER), ("--await-approval",), 0),
        ((ACCEPTS, ACCEPTS, AWAY, REFUSES), ("--await-approval",), 4),
        ((ACCEPTS, AWAY, WAITS, REFUSES), ("--await-silos", "--await-approval"), 0),
        ((ACCEPTS, AWAY, REFUSES, OLDER), ("--await-silos", "--await-approval"), 4),
    ],
)
def test_who_is_awaited_may_still_accept(coordinator, chorale, verdicts, awaits, code):
    says(coordinator, 3, *verdicts)
    assert chorale("run", "start", PLAN, "--base-config", BASE, *awaits)[0] == code
    assert bool(coordinator.conductor.started) == (code == 0)


def test_a_plan_shows_what_the_silos_say(coordinator, chorale):
    given = ("--base-config", BASE)
    live = ("run", "plan", PLAN, "--silos", 200, "--colluding", 66, *given, "--live")
    says(coordinator, 3, ACCEPTS, REFUSES, ACCEPTS, ACCEPTS)
    code, shown, prose = chorale(*live, output="text")
    assert code == 0, prose
    rows = [
        line.split(maxsplit=2) for line in shown.splitlines() if line[:6] in {"silo-0", "silo-1"}
    ]
    assert rows[:2] == [
        ["silo-0", "accept"],
        ["silo-1", "refuse", "clip: the site's policy does not allow so large a clip"],
    ]
    assert "3 of 4 silos accept, 0 wait for approval; a round opens with 3" in shown
    assert "asking the silos: 0 of 4 known" in prose
    code, answer, _ = chorale(*live, "--submit-token", "mine")
    assert (code, coordinator.conductor.asked[-1][1]) == (0, "mine")
    assert answer["data"]["live"]["submit_token"] == "mine"
    assert [one["rule"] for one in answer["data"]["live"]["silos"]] == ["", "clip", "", ""]
    # Two tokens that nobody chose differ, so that a plan can be asked about again.
    tokens = {chorale(*live) and coordinator.conductor.asked[-1][1] for _ in range(2)}
    assert len(tokens) == 2
    says(coordinator, 4, ACCEPTS, REFUSES, ACCEPTS, ACCEPTS)
    code, answer, _ = chorale(*live)
    assert (code, answer["error_code"]) == (4, "preflight_refused")
    assert coordinator.conductor.started == []


START_S = int(time.time()) // 60 * 60 + 7200
BEGINS = f"{datetime.fromtimestamp(START_S, tz=UTC):%Y-%m-%d %H:%M}"
TERMS = Offer(start_after_unix_s=START_S, epsilon_quarters=9)
OFFERED = admin_pb2.SiloVerdict(
    silo_id="silo-3",
    verdict="offer",
    rule="schedule",
    reason="the site's policy does not allow a round at this time",
    offer=offer_to_proto(TERMS),
)


@pytest.fixture
def moving(coordinator, tmp_path):
    """A plan that sites may move, and what the one offer makes of it."""
    path = tmp_path / "moving.toml"
    ranges = b"\n[negotiation]\nstart_within_s = 86400\nleast_epsilon = 1.0\n"
    path.write_bytes(PLAN.read_bytes() + ranges)
    made = amend(path.read_bytes(), {"silo-3": TERMS}, now_unix_s=int(time.time()))
    assert isinstance(made, Amended), made
    coordinator.conductor.amended_plan = made.plan_toml
    coordinator.conductor.moves = tuple(
        admin_pb2.PlanMove(key=move.key, before=move.before, after=move.after)
        for move in made.moves
    )
    return path


def negotiates(coordinator, *verdicts_then):
    says(coordinator, 3, ACCEPTS, ACCEPTS, ACCEPTS)
    conductor = coordinator.conductor
    conductor.verdicts = (*conductor.verdicts, OFFERED)
    conductor.verdicts_then = tuple(
        admin_pb2.SiloVerdict(silo_id=f"silo-{number}", verdict=verdict, rule=rule, reason=reason)
        for number, (verdict, rule, reason) in enumerate(verdicts_then)
    )


def test_asking_shows_offers_and_starts_nothing(coordinator, chorale):
    negotiates(coordinator)
    code, shown, prose = chorale("run", "ask", PLAN, output="text")
    assert code == 0, prose
    assert (
        "schedule: the site's policy does not allow a round at this time; offers start at "
        f"{BEGINS} UTC, epsilon 2.25"
    ) in shown
    code, answer, _ = chorale("run", "ask", PLAN, "--submit-token", "mine")
    assert code == 0
    assert coordinator.conductor.asked[-1] == (PLAN.read_bytes(), "mine")
    assert coordinator.conductor.negotiated == [False, False]
    offers = [one["offer"] for one in answer["data"]["silos"]]
    assert offers == [None, None, None, TERMS.named()]
    assert answer["data"]["written"] is None
    assert coordinator.conductor.started == []
    # What a site refuses as it stands is no accept.
    coordinator.conductor.quorum = 4
    assert chorale("run", "ask", PLAN)[:1] == (4,)


def test_an_amended_plan_is_written_where_enough_accept_it(coordinator, chorale, moving, tmp_path):
    out = tmp_path / "amended.toml"
    negotiate = ("run", "ask", moving, "--negotiate", "--out", out)
    negotiates(coordinator, ACCEPTS, ACCEPTS, REFUSES, WAITS)
    code, answer, _ = chorale(*negotiate)
    assert (code, answer["error_code"]) == (4, "preflight_refused")
    assert answer["data"]["before"]["accepts"] == 3
    assert not out.exists()
    negotiates(coordinator, ACCEPTS, ACCEPTS, ACCEPTS, REFUSES)
    code, answer, prose = chorale(*negotiate)
    assert code == 0
    assert coordinator.conductor.negotiated[-1]
    amended = coordinator.conductor.amended_plan
    assert out.read_bytes() == amended
    data = answer["data"]
    assert data["written"] == str(out)
    assert [one["verdict"] for one in data["before"]["silos"]] == [*["accept"] * 3, "offer"]
    assert [one["verdict"] for one in data["silos"]] == [*["accept"] * 3, "refuse"]
    move = {"key": "rounds.start_after_unix_s", "before": None, "after": str(START_S)}
    assert data["moves"][-1] == move
    assert data["amended_sha256"] == hashlib.sha256(amended).hexdigest()
    # A file that is there is not written over, and nobody is asked for nothing.
    asked = len(coordinator.conductor.asked)
    assert chorale(*negotiate)[1]["error_code"] == "file_exists"
    assert len(coordinator.conductor.asked) == asked
    code, shown, prose = chorale(*negotiate, "--force", output="text")
    assert code == 0
    assert f"amended: rounds.start_after_unix_s not set -> {START_S}" in shown
    assert f"it starts no earlier than {BEGINS}:00 UTC" in prose
    assert f"next: chorale run start {out}" in prose
    # And it is not started earlier.
    asked = len(coordinator.conductor.asked)
    code, answer, _ = chorale("run", "start", out, "--base-config", BASE)
    assert code != 0
    assert f"it starts no earlier than {BEGINS}:00 UTC" in answer["message"]
    assert len(coordinator.conductor.asked) == asked
    assert coordinator.conductor.started == []


@pytest.mark.parametrize(
    "forge",
    [
        lambda amended: amended + b"\n# and a line more\n",
        lambda amended: amended.replace(b"least_epsilon = 1.0", b"least_epsilon = 0.5"),
        lambda amended: amended.replace(str(START_S).encode(), str(START_S + 60).encode()),
        lambda _: b"no plan",
    ],
    ids=["a line more", "another range", "another start", "no plan"],
)
def test_a_coordinator_that_amends_otherwise_has_nothing_written(
    coordinator, chorale, moving, tmp_path, forge
):
    negotiates(coordinator, ACCEPTS, ACCEPTS, ACCEPTS, ACCEPTS)
    honest = coordinator.conductor.amended_plan
    coordinator.conductor.amended_plan = forge(honest)
    assert coordinator.conductor.amended_plan != honest
    out = tmp_path / "amended.toml"
    code, answer, _ = chorale("run", "ask", moving, "--negotiate", "--out", out)
    assert (code, answer["error_code"]) == (1, "amended_otherwise")
    assert not out.exists()


def test_offers_that_nobody_made_amend_nothing_here(coordinator, chorale, moving, tmp_path):
    says(coordinator, 3, ACCEPTS, ACCEPTS, ACCEPTS)
    coordinator.conductor.verdicts_then = coordinator.conductor.verdicts
    out = tmp_path / "amended.toml"
    code, answer, _ = chorale("run", "ask", moving, "--negotiate", "--out", out)
    assert (code, answer["error_code"]) == (1, "amended_otherwise")
    assert "no silo made an offer" in answer["message"]


def test_why_nothing_was_amended_is_said(coordinator, chorale, tmp_path):
    negotiates(coordinator)
    coordinator.conductor.not_amended = ("silo-3: local_epochs 1 lies outside 2 to below 5",)
    negotiate = ("run", "ask", PLAN, "--negotiate", "--out", tmp_path / "amended.toml")
    code, answer, _ = chorale(*negotiate)
    assert code == 0
    assert answer["data"]["not_amended"] == list(coordinator.conductor.not_amended)
    assert answer["data"]["written"] is None
    _, shown, _ = chorale(*negotiate, output="text")
    assert "not amended: silo-3: local_epochs 1 lies outside 2 to below 5" in shown


@pytest.mark.parametrize("options", [("--negotiate",), ("--out", "amended.toml")])
def test_negotiating_needs_a_file(coordinator, chorale, options):
    assert chorale("run", "ask", PLAN, *options)[1]["error_code"] == "arguments"
    assert coordinator.conductor.asked == []
