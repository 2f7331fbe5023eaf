"""Task ids, shards and the registry."""

import subprocess
import sys

import pytest

from evolution.envs import ENVIRONMENTS, Shard, ShardError, Split, UnknownEnvironmentError, make
from evolution.envs.tasks import SPLIT_SIZE, shard_index, task_range, task_rng


def test_shards_partition_a_split():
    whole = task_range(Split.TRAIN, labels=16)
    parts = [task_range(Split.TRAIN, labels=16, shard=Shard(index=i, count=4)) for i in range(4)]
    assert sorted(task for part in parts for task in part[:10]) == list(whole[:40])
    assert sum(map(len, parts)) == len(whole) == SPLIT_SIZE
    assert all(shard_index(part[9], labels=16, count=4) == i for i, part in enumerate(parts))


@pytest.mark.parametrize(("labels", "count"), [(16, 3), (16, 32), (1, 4), (8, 0)])
def test_uneven_shards_are_refused(labels, count):
    with pytest.raises(ShardError):
        shard_index(0, labels=labels, count=count)


@pytest.mark.parametrize(("index", "count"), [(4, 4), (-1, 4), (0, 0)])
def test_a_shard_that_does_not_exist_is_refused(index, count):
    with pytest.raises(ShardError):
        Shard(index=index, count=count)


def test_environments_do_not_share_random_streams():
    assert task_rng("maze", 5).integers(2**40) == task_rng("maze", 5).integers(2**40)
    assert task_rng("maze", 5).integers(2**40) != task_rng("craft", 5).integers(2**40)


def test_unknown_name_is_refused():
    with pytest.raises(UnknownEnvironmentError, match="craft"):
        make("nowhere")


def test_only_babyai_needs_heavy_packages():
    code = (
        "import sys; from evolution.envs import make\n"
        f"for name in {sorted(set(ENVIRONMENTS) - {'babyai'})}: make(name)\n"
        "heavy = {'torch', 'gymnasium', 'minigrid', 'transformers'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
