"""A run that was ended goes on where it was, and comes to what it would have come to."""

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress

import numpy as np
import pytest

from lab.experiment.config import load_experiment
from lab.experiment.errors import StateError, SumError
from lab.experiment.federation_round import CircleState
from lab.experiment.groups import GroupedSum
from lab.experiment.masked import MaskedSum
from lab.experiment.member import Member
from lab.experiment.results import Results
from lab.experiment.runner import run_all
from lab.experiment.single_run import play_run, versions_of
from lab.experiment.state import Kept, RunStates, remove_states
from lab.experiment.sums import PlainSum
from lab.experiment.tables import GroupsTable, NoiseTable
from tests.kit.lab.experiment_samples import HEAD, SILOS, base, runs, setting, silo, write
from tests.kit.paths import ROOT

FOUR = SILOS + silo(3)
SMALL = HEAD.replace("held_out = 16", "held_out = 4").replace("rounds = 2", "rounds = 3")
VERSIONS = {"numpy": "1"}
BASE = ROOT / "lab" / "base_model"
MASKED_THREE = 'per_round = 3\nsums = "masked"\n'
ALL_ROUNDS = "evolve = { window = 0 }\nper_round = 3\n"


class EndedError(Exception):
    """What stands for a kill inside the process."""


def states_of(run, directory, *, versions=VERSIONS, said=None):
    heard = [] if said is None else said
    return RunStates(directory=directory, run=run, versions=versions, say=heard.append)


def quiet(*_):
    pass


def facts(result):
    """Rows without times, and every bit of the adapters."""
    timed = ("wall_s",)
    rows = [{k: v for k, v in row.items() if k not in timed} for row in result.rows]
    bits = [
        {name: tensor.tobytes() for name, tensor in adapter.items()}
        for adapter in (*result.adapters, *result.personal.values())
    ]
    return rows, bits


@pytest.mark.parametrize(
    ("method", "extra"),
    [
        (
            "fedse",
            'aggregation = { method = "scaffold" }\nnoise = { z = 0.01 }\n' + MASKED_THREE,
        ),
        pytest.param(
            "fedse_personal",
            'aggregation = { server_optimiser = "fedadam", server_step = 0.01 }\n' + ALL_ROUNDS,
            marks=pytest.mark.long,
        ),
        pytest.param("fedsa", "evolve = { success_filter = false }\n", marks=pytest.mark.long),
        pytest.param("local_evolution", "", marks=pytest.mark.long),
        pytest.param("central_evolution", "evolve = { window = 2 }\n", marks=pytest.mark.long),
    ],
    ids=["scaffold", "personal", "fedsa", "alone", "central"],
)
def test_a_run_that_was_ended_in_the_middle_of_a_round_goes_on_to_the_same_bits(
    tmp_path, monkeypatch, method, extra
):
    # A base that solves some tasks, so that what is in the buffers matters.
    loaded = load_experiment(write(tmp_path, SMALL + FOUR + setting("x", method, extra)))
    (run,) = loaded.runs(base_dir=BASE, base_sha256="0" * 64)
    whole = play_run(run, tmp_path / "whole", progress=quiet)
    told = []
    evolve = Member.evolve

    def ended(member, adapter, *, round_number, **rest):
        made = evolve(member, adapter, round_number=round_number, **rest)
        # After the stores of the round have been written to.
        if round_number == 3:
            raise EndedError
        return made

    states = states_of(run, tmp_path / "kept")
    with monkeypatch.context() as patched:
        patched.setattr(Member, "evolve", ended)
        with pytest.raises(EndedError):
            play_run(run, tmp_path / "first", progress=quiet, states=states)
    assert heads(tmp_path / "kept") == ["round-000001.json", "round-000002.json"]
    rest = play_run(
        run,
        tmp_path / "second",
        progress=lambda number, *_: told.append(number),
        states=states_of(run, tmp_path / "kept"),
    )
    assert told == [3]
    assert facts(rest) == facts(whole)
    rounds = [row for row in whole.rows if row["kind"] == "round"]
    assert all(row["delta_l2_mean"] > 0 for row in rounds)
    assert sum(row["successes"]["craft"] for row in rounds[:2]) > 0


def heads(directory):
    return sorted(path.name for path in (directory / "state").glob("round-*.json"))


def worker(directory, scratch):
    scratch.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "lab.experiment.worker", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)},
    )


def wait_until_explored(scratch, round_index):
    """Until some silo has written down what it is about to play in a round, counted from 0."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        # A round's copy of the stores may go while it is looked for.
        with suppress(OSError, sqlite3.OperationalError):
            for path in scratch.rglob("successes.sqlite"):
                with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
                    query = "SELECT count(*) FROM explored WHERE round = ?"
                    if database.execute(query, (round_index,)).fetchone()[0]:
                        return
        time.sleep(0.01)
    raise TimeoutError


@pytest.mark.long
def test_a_killed_worker_goes_on_after_its_last_round_and_ends_with_the_same_rows(tmp_path):
    text = SMALL.replace("episodes = 8", "episodes = 16") + FOUR
    extra = 'per_round = 3\nsums = "masked"\naggregation = { server_optimiser = "fedavgm" }'
    (run,) = runs(tmp_path, text + setting("x", "fedse_personal", extra))
    ends = {}
    for name in ("whole", "killed"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "run.json").write_text(run.model_dump_json())
        rounds = []
        if name == "killed":
            with worker(directory, tmp_path / "scratch-first") as process:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline())["round"] == 1
                wait_until_explored(tmp_path / "scratch-first", 1)
                process.send_signal(signal.SIGKILL)
            assert process.returncode == -signal.SIGKILL
            assert heads(directory) == ["round-000001.json"]
            assert not (directory / "rows.jsonl").exists()
        with worker(directory, tmp_path / f"scratch-{name}") as process:
            assert process.stdout is not None
            rounds = [json.loads(line)["round"] for line in process.stdout]
        assert process.returncode == 0
        assert rounds == ([1, 2, 3] if name == "whole" else [2, 3])
        rows = [json.loads(line) for line in (directory / "rows.jsonl").read_text().splitlines()]
        ends[name] = (
            [{k: v for k, v in row.items() if k != "wall_s"} for row in rows],
            {path.name: sha256(path) for path in directory.glob("*.safetensors")},
        )
    assert ends["whole"] == ends["killed"]
    assert len(ends["whole"][1]) == 5


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def some(number):
    adapter = {"a": np.full(3, number, dtype=np.float32)}
    moments = {"m": np.full(2, 0.1 * number), "n": np.array([number], dtype=np.int64)}
    return Kept(
        round=number,
        rows=[{"kind": "round", "round": k, "kappa": 0.1 * k, "none": None} for k in range(number)],
        episodes=10 * number,
        wall_s=0.5,
        circles=[CircleState(adapter=adapter, aggregation=moments, sums=(number, 0))],
    )


@pytest.fixture
def kept(tmp_path):
    """Three rounds of a run, with a store that changes and one that does not."""
    (run,) = runs(tmp_path, SMALL + SILOS + setting("x", "fedse"))
    stores = tmp_path / "stores"
    (stores / "0" / "personal").mkdir(parents=True)
    (stores / "1").mkdir()
    (stores / "1" / "still").write_bytes(b"the same in each round")
    with closing(sqlite3.connect(stores / "0" / "x.sqlite", isolation_level=None)) as database:
        database.execute("CREATE TABLE t (n INTEGER)")
        for number in (1, 2, 3):
            database.execute("INSERT INTO t VALUES (?)", (number,))
            (stores / "0" / "personal" / "own").write_bytes(b"%d" % number)
            states_of(run, tmp_path).keep(some(number), stores)
    return run


def rows_of(path):
    with closing(sqlite3.connect(path)) as database:
        return [n for (n,) in database.execute("SELECT n FROM t ORDER BY n")]


def test_the_newest_round_is_taken_up_as_it_was(tmp_path, kept):
    assert heads(tmp_path) == ["round-000002.json", "round-000003.json"]
    found = states_of(kept, tmp_path).take_up(tmp_path / "into")
    expected = some(3)
    assert (found.round, list(found.rows), found.episodes) == (3, expected.rows, 30)
    (circle,), (wanted,) = found.circles, expected.circles
    assert circle.sums == (3, 0)
    for mine, theirs in (
        (circle.adapter, wanted.adapter),
        (circle.aggregation, wanted.aggregation),
    ):
        assert mine.keys() == theirs.keys()
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in theirs)
        assert all(mine[name].dtype == theirs[name].dtype for name in theirs)
    assert rows_of(tmp_path / "into" / "0" / "x.sqlite") == [1, 2, 3]
    assert (tmp_path / "into" / "0" / "personal" / "own").read_bytes() == b"3"
    assert (tmp_path / "into" / "1" / "still").read_bytes() == b"the same in each round"


def test_what_neither_of_two_rounds_needs_is_gone_and_what_is_the_same_is_there_once(
    tmp_path, kept
):
    named = set()
    for name in heads(tmp_path):
        head = json.loads((tmp_path / "state" / name).read_text().splitlines()[1])
        named |= {blob for one in head["circles"] for blob in (one["adapter"], one["aggregation"])}
        named |= set(head["stores"].values())
    blobs = {path.name for path in (tmp_path / "state" / "blobs").iterdir()}
    # Adapter, moments, database and personal adapter of two rounds; and the file that is the same.
    assert blobs == named
    assert len(blobs) == 9
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "state").rglob("*")}
    assert modes == {0}


@pytest.mark.parametrize("what", ["head", "cut", "blob", "absent"])
def test_a_damaged_round_is_not_taken_up_but_the_one_before_it(tmp_path, kept, what):
    newest = tmp_path / "state" / "round-000003.json"
    blob = json.loads(newest.read_text().splitlines()[1])["stores"]["0/x.sqlite"]
    path = newest if what in {"head", "cut"} else tmp_path / "state" / "blobs" / blob
    content = path.read_bytes()
    if what == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif what == "absent":
        path.unlink()
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    said = []
    found = states_of(kept, tmp_path, said=said).take_up(tmp_path / "into")
    assert found.round == 2
    assert rows_of(tmp_path / "into" / "0" / "x.sqlite") == [1, 2]
    assert (tmp_path / "into" / "0" / "personal" / "own").read_bytes() == b"2"
    assert "round-000003.json is damaged and not taken up" in said[0]
    # The round is played again, and what is damaged is replaced.
    states_of(kept, tmp_path).keep(some(3), tmp_path / "stores")
    assert states_of(kept, tmp_path).take_up(tmp_path / "again").round == 3


def test_where_nothing_whole_is_left_the_error_says_what_to_remove(tmp_path, kept):
    for name in heads(tmp_path):
        (tmp_path / "state" / name).write_bytes(b"x" * 200)
    with pytest.raises(StateError, match="nothing whole is left") as caught:
        states_of(kept, tmp_path).take_up(tmp_path / "into")
    assert f"remove {tmp_path / 'state'}" in str(caught.value)
    assert heads(tmp_path) == ["round-000002.json", "round-000003.json"]
    remove_states(tmp_path)
    assert states_of(kept, tmp_path).take_up(tmp_path / "into") is None


def test_a_store_cannot_be_written_outside_of_where_stores_are(tmp_path, kept):
    newest = tmp_path / "state" / "round-000003.json"
    text = newest.read_text().splitlines()[1].replace("1/still", "../../still")
    digest = hashlib.sha256(text.encode()).hexdigest()
    newest.write_text(f"{digest}\n{text}\n")
    said = []
    assert states_of(kept, tmp_path, said=said).take_up(tmp_path / "into").round == 2
    assert "no state of a round" in said[0]


@pytest.mark.parametrize("which", ["run", "versions"])
def test_what_belongs_to_another_run_is_never_taken_up(tmp_path, kept, which):
    said = []
    other = states_of(kept, tmp_path, versions={"numpy": "2"}, said=said)
    if which == "run":
        other = states_of(kept.model_copy(update={"rank": 3}), tmp_path, said=said)
    assert other.take_up(tmp_path / "into") is None
    assert not (tmp_path / "into").exists()
    assert "of another run or of other versions" in said[0]
    assert heads(tmp_path) == []


def test_a_kill_while_a_round_is_kept_leaves_the_one_before_it(tmp_path, kept, monkeypatch):
    def refused(path, parts, **_):
        if path.name.startswith("round-"):
            raise EndedError
        path.write_bytes(b"".join(parts))

    with monkeypatch.context() as patched:
        patched.setattr("lab.experiment.state.replace_file", refused)
        with pytest.raises(EndedError):
            states_of(kept, tmp_path).keep(some(4), tmp_path / "stores")
    (tmp_path / "state" / ".round-000004.json.0123456789ab.partial").write_bytes(b"half")
    assert states_of(kept, tmp_path).take_up(tmp_path / "into").round == 3
    states_of(kept, tmp_path).keep(some(4), tmp_path / "stores")
    assert not list((tmp_path / "state").glob(".*"))
    # Of round 4 adapter and moments are new; its stores are those of round 3.
    assert len(list((tmp_path / "state" / "blobs").iterdir())) == 7


@pytest.mark.parametrize("kind", [PlainSum, MaskedSum])
def test_sums_that_go_on_draw_the_noise_that_would_have_followed(kind):
    given = [np.random.default_rng(k).normal(size=50) for k in range(9)]

    def grouped():
        return GroupedSum(kind, NoiseTable(z=0.3), GroupsTable(count=3), silos=9, key=(1,))

    def one():
        return kind(NoiseTable(z=0.3), silos=9, key=(1,))

    for make in (grouped, one):
        first, second = make(), make()
        means = [first(given, clip_l2=2.0, what="delta") for _ in range(3)]
        assert means[1].tobytes() != means[2].tobytes()
        for _ in range(2):
            second(given, clip_l2=2.0, what="delta")
        third = make()
        third.go_on_after(second.counted)
        assert third(given, clip_l2=2.0, what="delta").tobytes() == means[2].tobytes()
        with pytest.raises(SumError, match="are not the counts"):
            third.go_on_after((1, 2))


@pytest.mark.long
def test_a_grid_takes_up_what_it_left_and_removes_it_when_the_rows_are_there(tmp_path):
    """A failed run goes on as well, and `--force-new` forgets what was kept."""
    base(tmp_path)
    text = SMALL + SILOS + setting("x", "fedse")
    (run,) = load_experiment(write(tmp_path, text)).runs(
        base_dir=tmp_path / "base", base_sha256="0" * 64
    )
    with Results(tmp_path / "out") as results:
        directory = results.run_directory(run)
        directory.mkdir(parents=True)
        states = RunStates(directory=directory, run=run, versions=versions_of(run), say=quiet)
        first = []

        def ended(number, *_):
            first.append(number)
            if number == 2:
                raise EndedError

        with pytest.raises(EndedError):
            play_run(run, tmp_path / "scratch", progress=ended, states=states)
        said = []
        outcome = run_all([run], results, workers=1, say=said.append)
        assert outcome.finished == 1, said
        first_told = next(line for line in said if " round " in line)
        assert first_told.startswith("x seed 0: round 3/3")
        assert "goes on after round 2" in (directory / "log.txt").read_text()
        assert not (directory / "state").exists()
        # As if the process had been ended after it wrote the rows.
        states.keep(some(2), tmp_path / "nothing")
        assert run_all([run], results, workers=1, say=said.append).skipped == 1
        assert not (directory / "state").exists()
        states.keep(some(2), tmp_path / "nothing")
        results.set_aside()
        assert not (directory / "state").exists()
