"""Members are built for a round and closed after it, in a copy of their stores."""

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evolution.memory.memory import Memory
from evolution.model.lora import initial_adapter
from lab.cli.main import app
from lab.experiment import member as member_module
from lab.experiment.engines import choice as engine_choice
from lab.experiment.engines.choice import EngineChoice, EngineKind
from lab.experiment.engines.engine import ProcessEngine
from lab.experiment.engines.local_round import LocalRound
from lab.experiment.engines.stores import Stores, directory_of
from lab.experiment.judge import Judge
from lab.experiment.member import Member
from lab.experiment.participation import taking_part
from lab.experiment.single_run import play_run
from lab.experiment.worker import arguments_of, asked
from tests.kit.lab.experiment_samples import HEAD, SILOS, base, runs, setting, silo, write

FEW = HEAD.replace("episodes = 8", "episodes = 2").replace("held_out = 16", "held_out = 4")
HUNDRED = "".join(silo(k, shard_index=k % 4, demonstrations=1, tasks=4) for k in range(100))


class EndedError(Exception):
    """What stands for a kill inside the process."""


def files_of(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_of_a_hundred_silos_only_those_that_took_part_have_state_and_one_at_a_time_is_open(
    tmp_path, monkeypatch
):
    (run,) = runs(tmp_path, FEW + HUNDRED + setting("x", "fedse_personal", "per_round = 4"))
    opened, judged, most = set(), [], []
    begin, end, judge = Memory.__init__, Memory.close, Judge.judge

    def noted_begin(memory, *args, **rest):
        begin(memory, *args, **rest)
        opened.add(id(memory))
        most.append(len(opened))

    def noted_end(memory):
        opened.discard(id(memory))
        end(memory)

    def noted_judge(self, version, *args):
        judged.append(version)
        return judge(self, version, *args)

    monkeypatch.setattr(Memory, "__init__", noted_begin)
    monkeypatch.setattr(Memory, "close", noted_end)
    monkeypatch.setattr(Judge, "judge", noted_judge)
    result = play_run(run, tmp_path / "run", progress=lambda *_: None)
    first, second = (set(taking_part(0, n, silos=100, per_round=4)) for n in (1, 2))
    stores = tmp_path / "run" / "stores"
    assert {path.name for path in stores.iterdir()} == {str(k) for k in first | second}
    assert not list((tmp_path / "run" / "attempts").iterdir())
    assert max(most) == 1
    assert not opened
    # Those who have not taken part all have the shared adapter, which is judged once a round.
    assert len(judged) == (1 + 4) + (1 + len(first | second))
    rows = [row for row in result.rows if row["kind"] == "eval" and row["scope"] == "personal"]
    assert {row["silo"] for row in rows} == set(range(100))
    assert len(result.personal) == 100


@pytest.fixture
def run(tmp_path):
    (made,) = runs(tmp_path, FEW + SILOS + setting("x", "fedse_personal"))
    return made


@pytest.fixture
def engine(run, tmp_path):
    with closing(ProcessEngine(run, tmp_path / "run")) as made:
        yield made


def work(run, number):
    first = initial_adapter(run.base, run.rank, run.alpha, run.seed)
    return LocalRound(indices=(1,), round_number=number, adapter=first, trainable=frozenset(first))


def bits(evolution):
    return {name: tensor.tobytes() for name, tensor in evolution.delta.items()}


def test_a_round_that_ends_half_done_leaves_the_stores_and_is_done_again_to_the_same_bits(
    run, engine, tmp_path, monkeypatch
):
    list(engine.play([work(run, 1)]))
    before = files_of(engine.stores.kept)
    assert {path.split("/")[1] for path in before} == {"successes.sqlite", "personal"}
    evolve, seen = Member.evolve, []

    def ended(member, *args, **rest):
        seen.append(bits(evolve(member, *args, **rest)))
        # After the round's copy was written to.
        (attempt,) = (tmp_path / "run" / "attempts").iterdir()
        assert files_of(attempt) != before
        raise EndedError

    with monkeypatch.context() as patched:
        patched.setattr(Member, "evolve", ended)
        with pytest.raises(EndedError):
            list(engine.play([work(run, 2)]))
    assert files_of(engine.stores.kept) == before
    assert not list((tmp_path / "run" / "attempts").iterdir())
    (again,) = engine.play([work(run, 2)])
    assert [bits(again)] == seen
    assert files_of(engine.stores.kept) != before


def test_a_member_is_given_its_demonstrations_once(run, engine, monkeypatch):
    given = []
    seed_buffer = member_module.seed_buffer

    def noted(*args, **rest):
        given.append(args[1])
        return seed_buffer(*args, **rest)

    monkeypatch.setattr(member_module, "seed_buffer", noted)
    for number in (1, 2):
        list(engine.play([work(run, number)]))
    assert given == [(1,)]
    with Memory(engine.stores.kept / "1" / "successes.sqlite") as memory:
        assert len(list(memory.experts())) == 3


def test_work_is_begun_as_results_are_taken(run, engine, tmp_path):
    played = engine.play([replace(work(run, 1), indices=(index,)) for index in range(3)])
    assert not (tmp_path / "run" / "stores").exists()
    next(played)
    assert [path.name for path in (tmp_path / "run" / "stores").iterdir()] == ["0"]


def test_two_hundred_pooled_silos_have_a_name_that_a_file_system_takes(tmp_path):
    stores = Stores(tmp_path)
    for number in (1, 2):
        attempt = stores.begin(range(200))
        (attempt / directory_of(range(200))).mkdir(exist_ok=True)
        (attempt / directory_of(range(200)) / f"file-{number}").touch()
        stores.keep(range(200), attempt)
    (made,) = stores.kept.iterdir()
    assert sorted(path.name for path in made.iterdir()) == ["file-1", "file-2"]
    assert [directory_of(one) for one in ([7], [0, 1, 2])] == ["7", "0-1-2"]


@pytest.mark.parametrize(
    ("members", "choice", "actors"),
    [(4, {"actors": 9}, 4), (100, {"actors": 9}, 9), (100, {}, len(os.sched_getaffinity(0)))],
)
def test_there_are_no_more_actors_than_members_work_in_a_round(members, choice, actors):
    assert EngineChoice(kind=EngineKind.RAY, **choice).actors_of(members) == actors


def test_a_worker_is_told_where_members_work():
    choice = EngineChoice(kind=EngineKind.RAY, actors=3, gpus_per_actor=0.25)
    assert asked(["there", *arguments_of(choice)]) == (Path("there"), choice)
    assert asked(["there"]) == (Path("there"), EngineChoice())


@pytest.mark.parametrize(
    ("arguments", "installed", "said"),
    [
        (["--engine", "ray"], False, "--engine ray needs Ray: pip install 'chorale[ray]'"),
        (["--actors", "2"], True, "have an effect with --engine ray only"),
        (["--engine", "ray", "--actors", "257"], True, "--actors is from 1 to 256, not 257"),
        (["--engine", "ray", "--actors", "-1"], True, "--actors is from 1 to 256, not -1"),
        (["--engine", "ray", "--gpus-per-actor", "1.5"], True, "a part of 1, or a whole number"),
        (["--engine", "ray", "--gpus-per-actor", "nan"], True, "a part of 1, or a whole number"),
        (["--engine", "ray", "--gpus-per-actor", "-1"], True, "a part of 1, or a whole number"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line_before_anything_runs(
    tmp_path, monkeypatch, arguments, installed, said
):
    monkeypatch.setattr(engine_choice, "find_spec", lambda _name: object() if installed else None)
    base(tmp_path)
    path, out = write(tmp_path, FEW + SILOS + setting("x", "fedse")), tmp_path / "out"
    done = CliRunner().invoke(app, ["run", str(path), "--out", str(out), *arguments])
    assert done.exit_code == 4
    first, *others = done.output.strip().splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert [line.split(":")[0] for line in others] == ["next"]
    assert not out.exists()
