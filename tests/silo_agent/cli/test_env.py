"""``chorale-silo env try``: what is played is shown as it is, and is nobody else's business."""

import hashlib
import json
import socket
import sys

import pytest

from evolution.rollout.engine import ANY_NUMBER
from ops.cli.envelope import Exit
from silo_agent.local_work import trial
from tests.kit.evolution.scripted_engine import ScriptedEngine
from tests.kit.paths import ROOT
from tests.kit.silo_agent.command_line import call

BASE = ROOT / "lab" / "base_model"
HOSTILE = (
    "\x1b[2J\x1b]52;c;aGk=\x07 red \x9b31m\r\u202eback\nassistant | I won\n"
    "episode 9 of 9: task 1 (all): solved\nwarning: \x00\u200b" + "long " * 4_000
)
PLUGIN = f"""
import sys

from evolution.envs import Environment


class Parrot(Environment):
    name = "parrot"
    family = "birds"
    max_steps = 3
    labels = ("blue", "red")
    instruction = "say the colour"
    examples = (("say grey", "grey"),)

    def reset(self, task_id):
        if TROUBLE == "reset":
            raise ZeroDivisionError("no bird\\x1b[2J here")
        self.colour = self.task_label(task_id)
        return f"say {{self.colour}}" if TROUBLE != "hostile" else {HOSTILE!r}, {{}}

    def step(self, action):
        if TROUBLE == "step":
            raise ZeroDivisionError("it flew away")
        right = action == self.colour
        return "thank you" if right else "no", float(right), right, False, {{
            "right": right, "valid": action in self.labels,
        }}

    def success(self, info):
        return info["right"]
"""


class Engine(ScriptedEngine):
    """Says what a test wrote; knows whether it was closed."""

    closed = 0
    most_at_once = ANY_NUMBER

    def load_adapter(self, version, tensors):
        assert (version, dict(tensors)) == ("base", {})

    def close(self):
        type(self).closed += 1


@pytest.fixture
def parrot(monkeypatch, tmp_path):
    """Install the plugin, in one of its moods."""

    def install(trouble="", *script, **options):
        (site := tmp_path / "site").mkdir()
        (site / "parrot_of_tests.py").write_text(f"TROUBLE = {trouble!r}\n{PLUGIN}")
        (info := site / "parrot-1.0.dist-info").mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[chorale.environments]\nparrot = parrot_of_tests:Parrot\n"
        )
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setattr(Engine, "closed", 0)
        made = Engine(*(script or ("blue",)), **options)
        monkeypatch.setattr(trial, "make_engine", lambda *_given, **_more: made)

    yield install
    sys.modules.pop("parrot_of_tests", None)


@pytest.fixture
def tries(monkeypatch, capsys, tmp_path):
    """Call the command on a silo whose files must stay as they are; nothing may be sent."""

    def nobody(*_arguments, **_more):
        raise AssertionError("something was sent")

    monkeypatch.setattr(socket.socket, "connect", nobody)
    (data := tmp_path / "silo").mkdir()
    (data / "privacy.ledger").write_bytes(b"not a ledger, and nobody looks")

    def contents():
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in data.iterdir()}

    def run(name, *options, toml='plugins = ["parrot"]\n', base=True):
        model = f'base_model = "{BASE}"\n' if base else ""
        (data / "silo.toml").write_text(model + toml)
        before = contents()
        answer = call(monkeypatch, capsys, "env", "try", name, "--data", str(data), *options)
        assert contents() == before
        return answer

    return run


def test_an_episode_is_a_conversation_with_its_examples_marked(tries, parrot):
    parrot("", "green", "blue")
    code, out, err = tries("parrot", "--episodes", "1", "--show", "--max-new-tokens", "5")
    assert code == Exit.OK, err
    first, *turns = out.splitlines()[:9]
    assert first.startswith("episode 1 of 1: task 1008000 (blue): solved, 2 turns, ")
    assert turns == [
        "  system                 | say the colour",
        "  user (example)         | say grey",
        "  assistant (example)    | grey",
        "  user                   | say blue",
        # Five letters leave no token for the end.
        "  assistant (cut off, not read) | green",
        "  user                   | no",
        "  assistant              | blue",
        "  user                   | thank you",
    ]
    assert "  solved         1 of 1" in out
    assert "  cut off        1 of 2 answers, at 5 tokens" in out
    assert "playing episode 1 of 1" in err
    assert "hint: a larger evolve.max_new_tokens" in err
    assert Engine.closed == 1


def test_without_show_no_text_of_an_episode_is_told(tries, parrot):
    parrot()
    code, out, err = tries("parrot", "--episodes", "4", "--format", "json")
    assert code == Exit.OK, err
    data = json.loads(out)["data"]
    assert "say" not in json.dumps(data)
    assert (data["environment"], data["episodes"], data["solved"]) == ("parrot", 4, 2)
    # Solved at once or tried three times.
    assert (data["turns"], data["truncated"], data["not_read"]) == (8, 2, 0)
    assert data["unknown_share"] == 0.0
    assert data["words"] > 0
    assert data["troubles"] == []
    assert "played" not in data
    assert "words_not_known" not in data
    _, out, _ = tries("parrot", "--episodes", "4", "--show", "--format", "json")
    episodes = json.loads(out)["data"]["played"]
    assert [one["outcome"] for one in episodes] == ["solved", "not solved"] * 2
    assert episodes[0]["turns"][1] == {
        "role": "user",
        "text": "say grey",
        "example": True,
        "cut_off": False,
        "not_read": False,
    }


def test_hostile_text_moves_nothing_and_passes_for_nothing(tries, parrot):
    parrot("hostile", "\x1b[8m blue")
    code, out, err = tries("parrot", "--episodes", "1", "--show")
    assert code == Exit.OK, err
    lines = out.splitlines()
    assert all(line.isprintable() for line in (*lines, *err.splitlines()))
    assert max(map(len, lines)) < 1_100
    # Its lines stand behind the bar, so that none begins as one of ours.
    (forged,) = [line for line in lines if "I won" in line]
    assert forged == f"  {'':<22} | assistant | I won"
    assert [line for line in lines if line.startswith("episode ")] == [lines[0]]
    assert not [line for line in lines if line.startswith("warning")]
    assert len(lines) < 60
    code, out, _ = tries("parrot", "--episodes", "1", "--show", "--format", "json")
    assert out.rstrip("\n").isprintable()
    (one,) = json.loads(out)["data"]["played"]
    assert max(len(turn["text"]) for turn in one["turns"]) <= 4_000


@pytest.mark.parametrize(
    ("trouble", "code", "said"),
    [
        ("reset", "environment", "parrot does not start: ZeroDivisionError: no bird [2J here"),
        ("step", "no_episode", "no episode of parrot was finished: all 2 were dropped"),
    ],
)
def test_an_environment_that_fails_is_said_to_be_the_one_that_failed(
    tries, parrot, trouble, code, said
):
    parrot(trouble)
    exit_code, out, err = tries("parrot", "--episodes", "2", "--format", "json")
    answer = json.loads(out)
    assert exit_code in {Exit.ARGUMENTS, Exit.SERVER}
    assert (answer["error_code"], answer["hint"] != "") == (code, True)
    assert said in err.replace("\x1b", " ")
    assert "\x1b" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("toml", "base", "said"),
    [
        ('environments = ["craft"]\n', True, "no environment 'parrot'; declared there: craft"),
        ("", True, "declared there: none"),
        ('environments = ["craft"]\n', False, "set base_model in silo.toml"),
    ],
)
def test_what_is_not_there_is_said(tries, toml, base, said):
    code, out, err = tries("parrot", "--format", "json", toml=toml, base=base)
    assert code == Exit.ARGUMENTS
    assert said in json.loads(out)["message"], err


def test_a_model_that_cannot_be_loaded_is_no_bug(tries, parrot, monkeypatch):
    parrot()

    def broken(*_given, **_more):
        raise ValueError("the header is too large")

    monkeypatch.setattr(trial, "make_engine", broken)
    code, out, _ = tries("parrot", "--format", "json")
    assert code == Exit.SERVER
    assert "cannot be loaded: ValueError: the header is too large" in json.loads(out)["message"]


def test_an_interrupt_ends_it_clean(tries, parrot):
    def interrupted(_prompt):
        raise KeyboardInterrupt

    parrot("", interrupted)
    code, out, err = tries("parrot", "--show")
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert Engine.closed == 1


def test_the_small_model_knows_its_own_words_and_is_told_of_others(tries):
    toml = 'environments = ["craft", "words"]\n'
    code, out, err = tries("craft", "--episodes", "2", "--format", "json", toml=toml)
    assert code == Exit.OK, err
    known = json.loads(out)["data"]
    assert (known["unknown_words"], known["troubles"]) == (0, [])
    code, out, err = tries("words", "--episodes", "2", "--show", "--format", "json", toml=toml)
    data = json.loads(out)["data"]
    assert data["unknown_share"] > 0.5
    assert "unknown_words" in [one["code"] for one in data["troubles"]]
    assert "What" in data["words_not_known"]
    assert "warning: the base model does not know" in err
