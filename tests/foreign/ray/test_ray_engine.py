"""Members work in the actors of a real Ray cluster: the bits are those of one process.

Each run is a process of its own, as the command starts it: Ray's settings hold for a process.
"""

import hashlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from evolution.model.identity import base_sha256
from lab.experiment.config import load_experiment
from tests.kit.lab.experiment_samples import HEAD, SILOS, base, setting, silo, write
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
RAY = ("--engine", "ray", "--actors", "2")
SMALL = HEAD.replace("held_out = 16", "held_out = 4").replace("rounds = 2", "rounds = 3")
# Everything that a member keeps from one round to the next: its memory, a personal adapter, and a
# control variate; and silos that stay away.
SETTING = setting(
    "x",
    "fedse_personal",
    'aggregation = { method = "scaffold" }\nnoise = { z = 0.01 }\nper_round = 3\n'
    'sums = "masked"\nevolve = { window = 0 }\n',
)
TEXT = SMALL + SILOS + silo(3) + SETTING


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a base that solves some tasks, so that what is in the memories matters."""
    loaded = load_experiment(write(tmp_path_factory.mktemp("file"), TEXT))
    (made,) = loaded.runs(base_dir=BASE, base_sha256=base_sha256(BASE))
    return made


@pytest.fixture(scope="module")
def expected(run, tmp_path_factory):
    """What one process comes to."""
    directory = described(run, tmp_path_factory.mktemp("process"))
    with worker(directory) as process:
        process.communicate()
    assert process.returncode == 0
    rows, adapters = end_of(directory)
    rounds = [row for row in rows if row["kind"] == "round"]
    assert all(row["delta_l2_mean"] > 0 for row in rounds)
    assert sum(row["successes"]["craft"] for row in rounds) > 0
    assert len(adapters) == 5
    return rows, adapters


def described(run, directory):
    (directory / "tmp").mkdir(parents=True)
    (directory / "run.json").write_text(run.model_dump_json())
    return directory


@contextmanager
def worker(directory, *arguments):
    """A process that runs the run, ended with whoever asked for it."""
    with (
        (directory / "log.txt").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "lab.experiment.worker", str(directory), *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "TMPDIR": str(directory / "tmp")},
        ) as process,
    ):
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def end_of(directory):
    rows = [json.loads(line) for line in (directory / "rows.jsonl").read_text().splitlines()]
    return (
        [{key: value for key, value in row.items() if key != "wall_s"} for row in rows],
        {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in directory.glob("*.safetensors")
        },
    )


def family_of(pid):
    """A process and all that it started, whose numbers may be given again: with their starts."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The name is in brackets and may have any character; state and parent follow it.
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(path.name)] = int(fields[1]), int(fields[19])
    family = {pid}
    while more := {one for one, (parent, _) in parents.items() if parent in family} - family:
        family |= more
    return {(one, parents[one][1]) for one in family if one in parents}


def wait_until_gone(family):
    deadline_s = time.monotonic() + 90
    while left := family & {one for pid, _ in family for one in family_of(pid)}:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.1)


def wait_until_explored(directory, round_index, pid):
    """A memory into which a round, counted from 0, is being played, and who has it open."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        # A round's copy of the stores may go while it is looked for.
        with suppress(OSError, sqlite3.OperationalError):
            for path in (directory / "tmp").rglob("attempts/*/*/successes.sqlite"):
                with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
                    query = "SELECT count(*) FROM explored WHERE round = ?"
                    explored = database.execute(query, (round_index,)).fetchone()[0]
                users = [user for user, _ in family_of(pid) if opens(user, path)]
                if explored and users:
                    return path, users
        time.sleep(0.005)
    raise TimeoutError


def opens(pid, path):
    with suppress(OSError):
        return any(Path(link).resolve() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def addresses_of(pids):
    """Where the processes listen, IPv4 and IPv6, read from the kernel."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                words = bytes.fromhex(fields[1].split(":")[0])
                parts = [words[i : i + 4][::-1] for i in range(0, len(words), 4)]
                found.add(socket.inet_ntop(family, b"".join(parts)))
    return found


def test_the_command_comes_to_the_bits_of_one_process_and_leaves_nothing_running(
    tmp_path, expected
):
    (tmp_path / "tmp").mkdir()
    path = write(tmp_path, TEXT.replace('base = "base"', f'base = "{BASE}"'))
    command = [sys.executable, "-c", "from lab.cli.main import main; main()", "run", str(path)]
    command += ["--out", str(tmp_path / "out"), *RAY]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    listened, family = set(), set()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        for line in process.stderr:
            if " round " in line:
                family |= family_of(process.pid)
                listened |= addresses_of(pid for pid, _ in family)
        said = process.stdout.read()
    assert process.returncode == 0
    # Of Ray's processes, by the fields of the kernel: nothing but the loopback address.
    assert listened
    assert listened <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert said.splitlines()[0].startswith("1 runs finished, 0 were finished before, 0 failed")
    out = tmp_path / "out"
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    rows = [{key: value for key, value in row.items() if key != "wall_s"} for row in rows]
    adapters = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (out / "runs" / "x-0").glob("*.safetensors")
    }
    assert adapters == expected[1]
    assert rows == expected[0]
    assert len([row for row in rows if row["kind"] == "round"]) == 3
    # The command, the run, Ray's own and two actors.
    assert len(family) > 6
    wait_until_gone(family)
    assert not list((tmp_path / "tmp").iterdir())


def test_a_killed_actor_is_replaced_and_its_round_is_done_again_to_the_same_bits(
    run, tmp_path, expected
):
    directory = described(run, tmp_path)
    with worker(directory, *RAY) as process:
        assert json.loads(process.stdout.readline())["round"] == 1
        path, (victim,) = wait_until_explored(directory, 1, process.pid)
        assert victim != process.pid
        os.kill(victim, signal.SIGKILL)
        rounds = [json.loads(line)["round"] for line in process.stdout]
    assert process.returncode == 0, (directory / "log.txt").read_text()
    assert rounds == [2, 3]
    name = f"silo-{path.parent.name}"
    assert f"an actor ended in round 2 of {name}" in (directory / "log.txt").read_text()
    assert end_of(directory) == expected


def test_a_run_whose_own_process_is_killed_goes_on_after_its_last_round(run, tmp_path, expected):
    directory = described(run, tmp_path)
    with worker(directory, *RAY) as process:
        assert json.loads(process.stdout.readline())["round"] == 1
        wait_until_explored(directory, 1, process.pid)
        family = family_of(process.pid)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    # Ray's processes end by themselves.
    assert len(family) > 6
    wait_until_gone(family)
    with worker(directory, *RAY) as process:
        rounds = [json.loads(line)["round"] for line in process.stdout]
    assert process.returncode == 0, (directory / "log.txt").read_text()
    assert rounds == [2, 3]
    assert end_of(directory) == expected


def test_what_a_member_fails_with_is_the_last_line_of_the_log(tmp_path):
    made = base(tmp_path)
    loaded = load_experiment(
        write(tmp_path, SMALL + SILOS + silo(3, tasks=2) + setting("bad", "fedit"))
    )
    (bad,) = loaded.runs(base_dir=made, base_sha256=base_sha256(made))
    directory = described(bad, tmp_path / "run")
    with worker(directory, *RAY) as process:
        process.communicate()
    assert process.returncode == 1
    last = (directory / "log.txt").read_text().splitlines()[-1]
    assert last.startswith("lab.experiment.errors.DemonstrationError: silo 'silo-3': the expert")


def test_gpus_that_are_not_there_are_an_error_and_not_a_wait(run, tmp_path):
    directory = described(run, tmp_path)
    with worker(directory, *RAY, "--gpus-per-actor", "64") as process:
        process.communicate()
    assert process.returncode == 1
    last = (directory / "log.txt").read_text().splitlines()[-1]
    assert "2 actors with --gpus-per-actor 64 need more than the" in last


def test_a_command_that_is_told_to_end_ends_all_of_ray(tmp_path):
    (tmp_path / "tmp").mkdir()
    text = TEXT.replace('base = "base"', f'base = "{BASE}"').replace("rounds = 3", "rounds = 1000")
    command = [sys.executable, "-c", "from lab.cli.main import main; main()", "run"]
    command += [str(write(tmp_path, text)), "--out", str(tmp_path / "out"), *RAY]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    ) as process:
        for line in process.stderr:
            if "round 1/1000" in line:
                break
        family = family_of(process.pid)
        process.terminate()
        process.stderr.read()
    assert process.returncode == 130
    assert len(family) > 6
    wait_until_gone(family)
