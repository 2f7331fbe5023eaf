"""[partition]: tasks dealt to silos, in files, in runs and in what runs explore."""

import hashlib
import json
from itertools import pairwise

import numpy as np
import pytest

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.memory.memory import Memory
from evolution.methods.population import MEMORY_FILE
from lab.experiment.config import load_experiment, read_run
from lab.experiment.errors import ExperimentFileError
from lab.experiment.single_run import play_run
from lab.experiment.tasks.flags import read_flags
from lab.experiment.tasks.own_tasks import FewTasks, own_labels, task_ids_of
from lab.experiment.tasks.report import report_partition
from tests.kit.lab.experiment_samples import HEAD, SILOS, runs, setting, silo, write
from tests.kit.paths import ROOT

SHA = "0" * 64
FIRST = make("craft").task_ids(Split.TRAIN)[0]
PREFERENCE = '[partition]\nkind = "preference"\nomega = 0.5\nlength = 12\npool = 320\n'
HARDNESS = (
    '[partition]\nkind = "hardness"\nxi_hard = 1\nlength = 12\npool = 320\n'
    'solved_shares = [0, 0.5, 1]\nsolved = "flags.jsonl"\n'
)
FOUR = '[[silo]]\nname = "shop"\nenvironments = ["craft"]\ndemonstrations = 2\ncount = 4\n'
ROW = setting("x", "fedse")


def flags(directory, count=320, environment="craft", first=FIRST):
    lines = [
        {"environment": environment, "task_id": first + k, "solved": k % 3 == 0}
        for k in range(count)
    ]
    path = directory / "flags.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def resolved(directory, text):
    return load_experiment(write(directory, text)).runs(base_dir=directory, base_sha256=SHA)


def problems(directory, text):
    with pytest.raises(ExperimentFileError) as caught:
        resolved(directory, text)
    return caught.value.problems


def solved(task_id):
    return (task_id - FIRST) % 3 == 0


def test_every_silo_has_what_it_is_dealt_and_pooled_they_have_it_all(tmp_path):
    (run,) = resolved(tmp_path, HEAD + PREFERENCE + FOUR + ROW)
    dealt = [task_ids_of(run, index, "craft") for index in range(4)]
    assert [len(set(ids)) for ids in dealt] == [12] * 4
    assert len(set(dealt)) == 4
    # The pool is the beginning of the training split, whatever the other splits hold.
    assert all(FIRST <= task_id < FIRST + 320 for ids in dealt for task_id in ids)
    pooled, plain = FewTasks(run, range(4)).make("craft"), make("craft")
    assert set(pooled.task_ids(Split.TRAIN)) == set().union(*dealt)
    assert tuple(FewTasks(run, [2]).make("craft").task_ids(Split.TRAIN)) == dealt[2]
    for split in (Split.HELD_OUT, Split.PRETRAIN):
        assert pooled.task_ids(split) == plain.task_ids(split)
    for index, ids in enumerate(dealt):
        labels = {plain.task_label(task_id) for task_id in ids}
        assert own_labels(run, index, "craft") == labels
        assert 1 <= len(labels) < 16


def test_the_tables_seed_deals_and_the_runs_seed_does_not(tmp_path):
    text = HEAD.replace("seeds = [0]", "seeds = [0, 1]") + PREFERENCE + FOUR
    rows = setting("x", "fedse") + setting("y", "fedse", "partition = { seed = 7 }")
    one, seven, other, _ = resolved(tmp_path, text + rows)
    assert (one.seed, other.seed, one.partition.seed, seven.partition.seed) == (0, 1, 42, 7)
    assert task_ids_of(one, 1, "craft") == task_ids_of(other, 1, "craft")
    assert task_ids_of(one, 1, "craft") != task_ids_of(seven, 1, "craft")


def test_an_environment_is_dealt_to_those_who_explore_it(tmp_path):
    mixed = "".join(
        silo(k, environment=name, count=1).replace(f"shard_index = {k}", "shard_index = 0")
        for k, name in enumerate(("craft", "maze", "craft", "maze", "craft"))
    )
    (run,) = resolved(tmp_path, HEAD + PREFERENCE + mixed + ROW)
    (alone,) = resolved(tmp_path, HEAD + PREFERENCE + FOUR.replace("count = 4", "count = 3") + ROW)
    for place, index in enumerate((0, 2, 4)):
        assert task_ids_of(run, index, "craft") == task_ids_of(alone, place, "craft")
    mazes = [task_ids_of(run, index, "maze") for index in (1, 3)]
    # Four labels and not sixteen: dealt by streams of its own.
    assert {len(ids) for ids in mazes} == {12}
    assert mazes[0] != mazes[1]
    assert own_labels(run, 0, "maze") == frozenset()


def test_hardness_deals_by_the_file_that_the_table_names(tmp_path):
    path = flags(tmp_path)
    (run,) = resolved(tmp_path, HEAD + HARDNESS + FOUR + ROW)
    counts = [sum(map(solved, task_ids_of(run, k, "craft"))) for k in range(4)]
    assert sum(counts) == 4 * 6
    assert len(set(counts)) > 1
    assert run.partition.solved == str(path)
    assert run.partition.solved_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    joint = HARDNESS.replace("hardness", "joint").replace("length = 12", "sizes = [6, 12, 18]")
    (run,) = resolved(tmp_path, HEAD + joint + "omega = 0.5\nxi = 2\n" + FOUR + ROW)
    sizes = [len(task_ids_of(run, k, "craft")) for k in range(4)]
    assert (sum(sizes), min(sizes) >= 6, max(sizes) <= 18) == (48, True, True)


def test_coverage_differs_in_sizes_by_what_a_setting_says(tmp_path):
    table = '[partition]\nkind = "coverage"\nxi = 1e6\nsizes = [4, 12, 40]\npool = 320\n'
    rows = setting("a", "fedse") + setting("b", "fedse", "partition = { xi = 0.5 }")
    alike, apart = resolved(tmp_path, HEAD + table + FOUR + rows)
    assert [len(task_ids_of(alike, k, "craft")) for k in range(4)] == [12] * 4
    assert len({len(task_ids_of(apart, k, "craft")) for k in range(4)}) > 1
    assert sum(len(task_ids_of(apart, k, "craft")) for k in range(4)) == 48


def test_a_setting_turns_the_dial_names_another_kind_or_brings_the_table(tmp_path):
    flags(tmp_path)
    other = 'partition = { kind = "coverage", xi = 4, sizes = [4, 8, 12] }'
    whole = f"partition = {{ {', '.join(HARDNESS.splitlines()[1:])} }}"
    rows = setting("a", "fedse", "partition = { omega = 0.99 }") + setting("b", "fedse", other)
    rows += setting("c", "fedse", whole) + setting("d", "fedse")
    a, b, c, d = resolved(tmp_path, HEAD + PREFERENCE.replace("320", "300") + FOUR + rows)
    assert (a.partition.omega, a.partition.length, d.partition.omega) == (0.99, 12, 0.5)
    assert (b.partition.kind, b.partition.pool, b.partition.length) == ("coverage", 300, None)
    assert (c.partition.kind, c.partition.pool) == ("hardness", 320)
    assert len({run.sha256 for run in (a, b, c, d)}) == 4
    brought, bare = resolved(tmp_path, HEAD + FOUR + setting("b", "fedse", whole) + ROW)
    assert (brought.partition.pool, bare.partition) == (320, None)


def test_a_partition_is_part_of_a_run_and_where_its_flags_lie_is_not(tmp_path):
    (bare,) = resolved(tmp_path, HEAD + FOUR + ROW)
    assert "partition" not in bare.described()
    path = flags(tmp_path)
    (run,) = resolved(tmp_path, HEAD + HARDNESS + FOUR + ROW)
    assert run.described()["partition"] == {
        "kind": "hardness",
        "xi_hard": 1.0,
        "length": 12,
        "solved_shares": [0.0, 0.5, 1.0],
        "solved_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "pool": 320,
        "seed": 42,
    }
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.rename(elsewhere / "flags.jsonl")
    (moved,) = resolved(elsewhere, HEAD + HARDNESS + FOUR + ROW)
    assert moved.sha256 == run.sha256
    assert moved.partition.solved != run.partition.solved
    flags(tmp_path, count=321)
    (more,) = resolved(tmp_path, HEAD + HARDNESS + FOUR + ROW)
    assert more.sha256 != run.sha256
    (tmp_path / "run.json").write_text(run.model_dump_json())
    assert read_run(tmp_path / "run.json") == run


def test_flags_that_change_after_the_file_was_read_end_the_run(tmp_path):
    path = flags(tmp_path)
    (run,) = resolved(tmp_path, HEAD + HARDNESS + FOUR + ROW)
    path.write_text(path.read_text().replace("true", "false"))
    read_flags.cache_clear()
    with pytest.raises(ExperimentFileError, match="has changed since the experiment was read"):
        read_flags(run.partition.solved, run.partition.solved_sha256)
    pin = f'solved_sha256 = "{run.partition.solved_sha256}"\n'
    (found,) = problems(tmp_path, HEAD + HARDNESS + pin + FOUR + ROW)
    assert "partition.solved_sha256: " in found
    assert "it is another file" in found


def test_several_silos_of_one_table_are_those_that_are_written_out(tmp_path):
    table = '[[silo]]\nname = "{}"\nenvironments = ["craft"]\ntasks = 6\ndemonstrations = 3\n'
    written = "".join(table.format(f"shop-00{k}") for k in (1, 2, 3))
    (counted,) = resolved(tmp_path, HEAD + table.format("shop") + "count = 3\n" + ROW)
    (spelled,) = resolved(tmp_path, HEAD + written + ROW)
    assert [silo.name for silo in counted.silos] == ["shop-001", "shop-002", "shop-003"]
    assert counted.described() == spelled.described()
    assert counted.sha256 == spelled.sha256
    own = [task_ids_of(counted, index, "craft") for index in range(3)]
    assert all(one != other for one, other in pairwise(own))
    (hundred,) = resolved(
        tmp_path, HEAD + FOUR.replace("count = 4", "count = 100") + silo(7, count=8) + ROW
    )
    assert len(hundred.silos) == 101
    assert (hundred.silos[99].name, hundred.silos[100].name) == ("shop-100", "silo-7")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("omega = 0.5", "omgea = 0.5", "partition.omgea: unknown key; the nearest valid key is"),
        ("omega = 0.5", "omega = 1", "partition.omega"),
        ("omega = 0.5", "omega = nan", "partition.omega"),
        ("omega = 0.5", "", "kind 'preference' needs omega: add it"),
        ("omega = 0.5", "omega = 0.5\nxi = 2", "kind 'preference' does not read xi: remove it"),
        (
            "omega = 0.5",
            f'omega = 0.5\nsolved_sha256 = "{SHA}"',
            "does not read solved_sha256: remove it",
        ),
        ('"preference"', '"preferred"', "partition.kind"),
        ("pool = 320", "", "partition.pool: this key is required: add it"),
        ("pool = 320", "pool = 2000000", "partition.pool"),
        ("length = 12", "length = 400", "craft: a silo may get 400 tasks and the pool has 320"),
        ("demonstrations = 2", "tasks = 9", "silo 'shop-001' has its own by tasks"),
        ("demonstrations = 2", "shard_count = 2", "silo 'shop-001' has its own by shard_count"),
        ("count = 4", "count = 0", "silo.0.count"),
        ("count = 4", "count = 201", "silo.0.count"),
        ("count = 4", "count = 200\n" + silo(1), "with every count there are 201"),
        ('"shop"', '"' + "s" * 61 + '"', "at most 60 characters, because a number follows"),
        ('"shop"', '"shop"\n', None),
    ],
)
def test_what_a_table_cannot_mean_is_refused_with_its_key(tmp_path, before, after, says):
    text = HEAD + PREFERENCE + FOUR + ROW
    assert before in text
    text = text.replace(before, after)
    if says is None:
        assert resolved(tmp_path, text)
    else:
        assert any(says in problem for problem in problems(tmp_path, text))


def test_names_that_counting_makes_twice_are_refused(tmp_path):
    twice = FOUR + FOUR.replace('"shop"', '"shop-001"').replace("count = 4", "")
    found = problems(tmp_path, HEAD + twice + ROW)
    assert any("the name 'shop-001' appears twice" in problem for problem in found)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("[0, 0.5, 1]", "[0, 0.3, 1]", "of 12 tasks are whole numbers of tasks, and 3.6 is none"),
        ("[0, 0.5, 1]", "[0.5, 0.25, 1]", "solved_shares: least, average and most, in this order"),
        ("[0, 0.5, 1]", "[0, 1]", "partition.solved_shares"),
        ('"flags.jsonl"', '"nothing.jsonl"', "this makes it: chorale-lab partition flags"),
        ("pool = 320", "pool = 330", "10 of 330 tasks of 'craft' have no line"),
        ("length = 12", "length = 240", "240 solved tasks and the pool has 107"),
    ],
)
def test_what_flags_do_not_allow_is_said_before_anything_runs(tmp_path, before, after, says):
    flags(tmp_path)
    text = (HEAD + HARDNESS + FOUR).replace(before, after)
    found = problems(tmp_path, text + setting("x", "fedse") + setting("y", "fedit"))
    assert any(says in problem for problem in found), found


def test_what_is_wrong_with_the_files_own_table_is_said_once(tmp_path):
    rows = setting("x", "fedse") + setting("y", "fedse", "partition = { xi_hard = 2 }")
    found = problems(tmp_path, HEAD + HARDNESS + FOUR + rows + setting("z", "fedit"))
    assert [problem.split(": ")[0] for problem in found] == [
        "partition.solved",
        "setting.1.partition.solved",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{}", "line 321: not"),
        ("", "line 321: not"),
        ("[]", "line 321: not"),
        ('{"environment": "craft", "task_id": 1, "solved": 1}', "line 321: not"),
        ('{"environment": "craft", "task_id": "1", "solved": true}', "line 321: not"),
        ('{"environment": "craft", "task_id": -1, "solved": true}', "line 321: not"),
        ('{"environment": "craft", "task_id": 1, "solved": true, "x": 2}', "line 321: not"),
        (
            f'{{"environment": "craft", "task_id": 1, "solved": true}}{" " * 600}',
            "line 321: longer",
        ),
        (
            f'{{"environment": "craft", "task_id": {FIRST}, "solved": true}}',
            f"line 321: task {FIRST} of 'craft' has two lines",
        ),
        (
            '{"environment": "craft", "task_id": 5, "solved": true}',
            "1 tasks of 'craft' are no training tasks (5): remove their lines",
        ),
        (
            f'{{"environment": "craft", "task_id": {2 * FIRST}, "solved": true}}',
            "are no training tasks",
        ),
    ],
)
def test_a_line_that_is_no_flag_of_a_training_task_is_refused(tmp_path, line, says):
    path = flags(tmp_path)
    path.write_text(path.read_text() + line + "\n")
    found = problems(tmp_path, HEAD + HARDNESS + FOUR + ROW)
    assert any(says in problem for problem in found), found


def test_silos_explore_and_are_shown_what_they_were_dealt_and_nothing_else(tmp_path):
    head = HEAD.replace("rounds = 2", "rounds = 1").replace("held_out = 16", "held_out = 4")
    (run,) = runs(tmp_path, head + PREFERENCE + FOUR + ROW)
    scratch = tmp_path / "scratch"
    result = play_run(run, scratch, progress=lambda *_: None)
    for index in range(4):
        with Memory(scratch / "stores" / str(index) / MEMORY_FILE) as memory:
            known = memory.known_tasks()
        assert {task for _, task in known} <= set(task_ids_of(run, index, "craft"))
        assert len(known) >= 2
    config = result.rows[-1]["config"]
    assert config["partition"]["omega"] == 0.5
    assert config["silos"][3]["own_labels"] == {"craft": sorted(own_labels(run, 3, "craft"))}
    judged = [row for row in result.rows if row["kind"] == "eval" and row["silo"] == 1]
    for row in judged:
        assert row["own"] == (row["label"] in own_labels(run, 1, "craft"))


PAGE = (ROOT / "docs" / "partitions.md").read_text()


def test_the_example_of_the_page_is_read_and_has_the_figures_of_the_page(tmp_path):
    flags(tmp_path, count=6400)
    example = PAGE.split("```toml\n")[1].split("```")[0]
    head = 'name = "page"\nbase = "base"\nrounds = 1\nseeds = [0]\n'
    alike, types, sizes, ease = resolved(tmp_path, head + example)
    assert [run.setting for run in (alike, types, sizes, ease)] == (
        ["alike", "types", "sizes", "ease"]
    )
    for run, begins, measures in (
        (alike, "alike, ω = 0.01", ("preference",)),
        (types, "types, ω = 0.99", ("preference",)),
        (sizes, "sizes, ξ = 1", ("coverage", "preference")),
    ):
        (report,) = report_partition(run, run.partition, seeds=1)
        found = {one.name: one for one in report.measures}
        lines = PAGE.split(f"| {begins} |")[1].splitlines()
        for measure, line in zip(measures, lines, strict=False):
            cells = [cell.strip() for cell in line.split("|") if cell.strip()]
            one = found[measure]
            assert cells[:1] == [measure]
            assert cells[2:4] == [f"{one.expected:.4f}", f"{one.measured:.4f}"]
            assert float(cells[1]) == round(one.formula, 4)


def test_a_file_without_a_partition_has_the_silos_that_it_had(tmp_path):
    (run,) = resolved(tmp_path, HEAD + SILOS + setting("one", "fedse"))
    assert run.sha256 == "879983d02cc0dc5cd1612d14a5c2c746c056f8b86e6417c433bd0d5473a39238"
    assert np.array_equal(task_ids_of(run, 1, "craft"), np.arange(FIRST + 1, 2 * FIRST, 4))
