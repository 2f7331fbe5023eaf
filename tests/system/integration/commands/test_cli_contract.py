"""The contract of every command: help that teaches, results on stdout, exit codes with a meaning.

The commands are found by walking the command lines themselves, so a new one is covered by itself.
An exception to a rule is a line in a table here, with its reason.

Covered: help, versions, errors, what an empty directory is answered with, as an envelope and for
people. Not covered: what a command that succeeds prints; test_cli_results.py calls each of them.
"""

import inspect
import json
import os
import subprocess
import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import get_args, get_origin, get_type_hints

import pytest

from federation.version import this_version
from tests.kit.paths import ROOT
from tests.kit.processes.commands import BESIDES, LEAVES, NODES, PROGRAMS

pytestmark = pytest.mark.xdist_group("cli_contract")

PLAN = ROOT / "deploy" / "examples" / "plan-constant.toml"

NO_ENVELOPE = {
    ("chorale", "demo"): "a show for people: tables and a report file",
    ("chorale", "report"): "writes a page for people from a demo's outcome",
    ("chorale-lab", "report"): "its --format chooses between Markdown and the figures themselves",
    ("chorale-coordinator", "serve"): "a daemon: JSON lines on stderr until it is stopped",
}
SUCCEEDS = {
    ("chorale", "root", "init"): "makes something new where nothing is",
    ("chorale-silo", "policy", "init"): "writes a first policy where none is",
    ("chorale", "run", "plan"): "is offline: the plan alone decides",
    ("chorale", "plan", "new"): "is offline: silos, episodes and ε decide",
    ("chorale", "deploy", "compose"): "writes files for a federation that is not there yet",
    ("chorale", "deploy", "helm"): "writes files for a coordinator that is not there yet",
    ("chorale", "deploy", "systemd"): "writes files for a coordinator that is not there yet",
    ("chorale-silo", "deploy", "systemd"): "writes files for a silo that is not there yet",
}
"""Commands that are right to succeed in an empty directory."""
LONG = {("chorale-lab", "base", "build"): "makes a model, which takes minutes, wherever it is"}
"""Commands that an empty directory does not stop, and whose work is too long for this file."""
MORE = {
    ("chorale", "run", "plan"): ("--dimension", "100", "--silos", "4", "--colluding", "1"),
    ("chorale", "plan", "new"): ("--silos", "3", "--episodes", "80", "--epsilon", "8"),
    ("chorale-silo", "buffer", "delete"): ("--subject", "nobody"),
    ("chorale-silo", "facts", "set"): ("--queue", "3"),
    ("chorale-lab", "base", "import"): ("--hf", "."),
    ("chorale-lab", "base", "smollm2"): ("--wheel", "nowhere.whl"),
}
"""Options without which the arguments are incomplete, or the network is asked, though none of them
is required by itself."""
FINDINGS = {
    ("chorale", "doctor"): "each step that it took, and what it found",
    ("chorale-silo", "doctor"): "each step that it took, and what it found",
}
"""Commands that have a result to show though they fail."""
KEYS = {"schema_version", "status", "error_code", "message", "hint", "next_step"}
TEXTS = {
    "federation": "oncology",
    "name": "oncology",
    "silo": "hospital-a",
    "silo_id": "hospital-a",
    "invite": "chorale1.nothing",
    "run_id": "run-1",
    "host": "localhost",
    "ttl": "24h",
    "overlap": "30d",
}
"""A value of the right form for a required text, by the parameter's name."""
BARE = (sys.executable, "-c", "import typer")
HELP_LIMIT, TRIES = 3, 5
"""A help takes at most so many times what starting Python with typer alone takes."""


WITH_ENVELOPE = [leaf for leaf in LEAVES if leaf.path not in NO_ENVELOPE]


def parameters(command):
    return [p for p in command.params if p.name != "help"]


def kind(leaf, parameter):
    """The Python type of a parameter, and what typer is told about it."""
    hints = get_type_hints(inspect.unwrap(leaf.command.callback), include_extras=True)
    declared, info = get_args(hints[parameter.name])[:2]
    (inner,) = [part for part in get_args(declared) or (declared,) if part is not NoneType][:1]
    return (declared if get_origin(declared) is tuple else inner), info


@pytest.fixture
def call(monkeypatch, capfd, tmp_path):
    """Run a console script's own ``main`` here, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("CHORALE_DATA", "CHORALE_SILO_DATA"):
        monkeypatch.delenv(name, raising=False)

    def run(program, *arguments):
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        code = 0
        try:
            import_module(PROGRAMS[program]).main()
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize("node", NODES, ids=str)
def test_help_teaches(node, call):
    code, out, err = call(node.program, *node.words, "--help")
    assert code == 0, err
    assert "Usage:" in out
    text = " ".join((node.command.help or "").split())
    assert len(text.split()) >= 3, f"{node} says nothing about itself"
    for parameter in parameters(node.command):
        said = getattr(parameter, "help", None) or ""
        assert len(said.split()) >= 2, f"{node}: {parameter.name} says nothing about itself"
    for name, child in getattr(node.command, "commands", {}).items():
        assert name in out
        assert child.get_short_help_str(), f"{node} lists {name} without a word"


def test_the_walk_finds_the_commands():
    paths = {leaf.path for leaf in LEAVES}
    assert len(paths) > 40
    for known in (("chorale", "doctor"), ("chorale-silo", "doctor"), ("chorale", "run", "watch")):
        assert known in paths
    for table in (NO_ENVELOPE, SUCCEEDS, LONG, MORE, FINDINGS):
        assert set(table) <= paths, set(table) - paths


@pytest.mark.parametrize("leaf", WITH_ENVELOPE, ids=str)
def test_every_command_has_the_format_option(leaf):
    options = {name for p in parameters(leaf.command) for name in p.opts}
    assert "--format" in options
    (chosen,) = [p for p in parameters(leaf.command) if "--format" in p.opts]
    assert {"text", "json"} <= {choice.value for choice in kind(leaf, chosen)[0]}


def envelope_of(code, out, err):
    assert out.endswith("\n"), err
    assert out.count("\n") == 1, out
    envelope = json.loads(out)
    assert envelope["schema_version"] == 1
    if envelope["status"] == "error":
        assert code in {1, 2, 3, 4}, (code, err[-2000:])
        assert set(envelope) - {"data"} == KEYS
        assert envelope["error_code"].replace("_", "").isalnum()
        assert envelope["message"]
        assert envelope["hint"] or envelope["next_step"], envelope
        assert "Traceback" not in err, err
        assert err.strip(), "nothing is said to people"
    else:
        assert (code, set(envelope)) == (0, {"schema_version", "status", "data"})
    return envelope


def value(leaf, parameter, directory):
    """Something of the right form for a required parameter."""
    form, info = kind(leaf, parameter)
    if issubclass(form, Enum):
        return next(iter(form)).value
    if issubclass(form, int | float):
        return str(info.min or 1)
    if issubclass(form, Path):
        return str(path(parameter, info, directory))
    return TEXTS.get(parameter.name, "something")


def path(parameter, info, directory):
    if "plan" in (parameter.name, *(parameter.metavar or "").lower().split()):
        return PLAN
    place = directory / f"a-{parameter.name.replace('_', '-')}"
    if info.exists:
        if parameter.name == "base" or not info.file_okay:
            place.mkdir(exist_ok=True)
        else:
            place.write_text("nothing of use")
    return place


def required(leaf, directory):
    arguments = []
    for parameter in parameters(leaf.command):
        if not parameter.required:
            continue
        name = [word for word in parameter.opts if word.startswith("--")]
        arguments += [*name[:1], value(leaf, parameter, directory)]
    return arguments


def on_nothing(leaf, directory):
    """Arguments of the right form, in a directory that holds nothing."""
    (directory / "work").mkdir()
    arguments = [*required(leaf, directory / "work"), *MORE.get(leaf.path, ())]
    for parameter in parameters(leaf.command):
        if "--data" in parameter.opts:
            (directory / "empty").mkdir()
            arguments += ["--data", directory / "empty"]
    return arguments


QUICK = [leaf for leaf in WITH_ENVELOPE if leaf.path not in LONG]


@pytest.mark.parametrize("leaf", QUICK, ids=str)
def test_an_empty_directory_is_answered_with_one_envelope(leaf, call, tmp_path):
    arguments = on_nothing(leaf, tmp_path)
    code, out, err = call(leaf.program, *leaf.words, *arguments, "--format", "json")
    envelope = envelope_of(code, out, err)
    if leaf.path in SUCCEEDS:
        assert envelope["status"] == "ok", envelope
    else:
        assert envelope["status"] == "error", "an empty directory is no place to succeed in"
        assert envelope["error_code"] != "arguments", (arguments, err)


@pytest.mark.parametrize("leaf", QUICK, ids=str)
def test_for_people_a_result_is_on_stdout_and_an_error_is_not(leaf, call, tmp_path):
    code, out, err = call(leaf.program, *leaf.words, *on_nothing(leaf, tmp_path))
    assert bool(out) == (leaf.path in SUCCEEDS or leaf.path in FINDINGS), (out, err)
    assert not [line for line in out.splitlines() if line.startswith(BESIDES)]
    said = [line for line in err.splitlines() if line.startswith(BESIDES)]
    assert bool(code) == any(line.startswith("error: ") for line in said), err
    assert bool(code) == (leaf.path not in SUCCEEDS)
    assert not set(out.splitlines()) & set(err.splitlines()), "the same is said twice"


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("option", ["--version", "-V"])
def test_every_program_says_its_version(program, option, call):
    assert call(program, option) == (0, f"chorale {this_version()}\n", "")


def left_alone(directory, *command):
    """What a process that nobody reads ends with, and what it says of that."""
    reader, writer = os.pipe()
    os.close(reader)
    script = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [script, *command[1:]], cwd=directory, stdout=writer, stderr=subprocess.PIPE, text=True,
        check=False,
    )  # fmt: skip
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("program", ["chorale", "chorale-silo"])
def test_a_reader_that_leaves_ends_a_command_without_a_word(program, output, tmp_path):
    words = ("deploy", "systemd", "--out", "out", "--format", output)
    code, err = left_alone(tmp_path, program, *words)
    assert code == 141, err
    assert not [line for line in err.splitlines() if not line.startswith(("next: ", "warning: "))]
    assert left_alone(tmp_path, program, "--version") == (141, "")


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_an_unknown_option_is_exit_code_4(leaf, call):
    given = () if leaf.path in NO_ENVELOPE else ("--format", "json")
    code, out, err = call(leaf.program, *leaf.words, "--no-such-option", *given)
    assert code == 4, err
    assert "no-such-option" in err
    if given:
        assert envelope_of(code, out, err)["error_code"] == "arguments"
    else:
        assert out == ""


def cold_s(*command):
    """Processor seconds of one process, which depend less on what else runs than the clock does."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as popen:
        _, status, usage = os.wait4(popen.pid, 0)
        popen.returncode = os.waitstatus_to_exitcode(status)
    assert popen.returncode == 0
    return usage.ru_utime + usage.ru_stime


SAMPLE = [
    ("chorale", "run", "start"),
    ("chorale", "doctor"),
    ("chorale", "audit", "verify"),
    ("chorale", "plan", "new"),
    ("chorale", "demo"),
    ("chorale-coordinator", "serve"),
    ("chorale-silo", "join"),
    ("chorale-silo", "doctor"),
    ("chorale-silo", "policy", "check"),
    ("chorale-lab", "run"),
]


QUESTIONS = [(*words, "--help") for words in [(program,) for program in PROGRAMS] + SAMPLE]
QUESTIONS += [(program, "--version") for program in PROGRAMS]


@pytest.mark.parametrize("words", QUESTIONS, ids="-".join)
def test_help_and_version_are_quick_in_a_process_of_their_own(words):
    script = Path(sys.executable).with_name(words[0])
    assert script.exists(), "the console scripts are not installed"
    bare, ours = [], []
    for _ in range(TRIES):
        bare.append(cold_s(*BARE))
        ours.append(cold_s(script, *words[1:]))
        if min(ours) < HELP_LIMIT * min(bare):
            return
    pytest.fail(f"{min(ours):.3f} s, and {min(bare):.3f} s for Python with typer alone")
