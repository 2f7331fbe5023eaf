"""The coordinator never has a silo's plaintext: memory map, disk and database are searched.

What is looked for are the silo's delta as raw float32 and float64, in fixed point (int32, int64)
and as ring elements. The same search must find them in the silo's own process, and in a
coordinator that runs with masks off on both sides; otherwise it could not fail.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.processes.leak_search import files, memory

WINDOW = 16
"""Elements of the pattern that are looked for together."""
ROUNDS = 4


def needles(silo_id: str) -> dict[str, bytes]:
    floats = cf.constant_pattern(cf.VALUES[silo_id], WINDOW)
    fixed = np.rint(floats.astype(np.float64) * (cf.GRID / cf.CLIP)).astype(np.int64)
    return {
        "float32": floats.astype("<f4").tobytes(),
        "float64": floats.astype("<f8").tobytes(),
        "fixed point": fixed.astype("<i8").tobytes(),
        "ring": fixed.astype("<u4").tobytes(),
    }


def disk(directory: Path) -> list[bytes]:
    return list(files(directory).values())


def found(haystacks: list[bytes], silo_id: str) -> set[str]:
    return {
        name
        for name, needle in needles(silo_id).items()
        if any(needle in haystack for haystack in haystacks)
    }


def sum_needle() -> bytes:
    total = sum(cf.fixed_point(cf.VALUES[silo_id]) for silo_id in cf.SILOS)
    return total[:WINDOW].astype("<i4").tobytes()


def run_once(tmp_path, *, masks: bool):
    """What was at the coordinator after any of the rounds, whether the sum was, and at each silo.

    What a process has freed stays in its memory until something else is put there. So the search
    looks several times.
    """
    environment = {} if masks else {"CHORALE_TEST_PLAINTEXT": "1"}
    coordinator = None if masks else "tests.system.integration.hostile.maskless_coordinator"
    silo = "silo_agent.cli.main" if masks else "tests.kit.processes.faulty_silo"
    at_coordinator: dict[str, set[str]] = {silo_id: set() for silo_id in cf.SILOS}
    with_the_sum = False
    with cf.federation(tmp_path, environment=environment) as loopback:
        if coordinator is not None:
            loopback.kill("coordinator")
            loopback.start_coordinator(module=coordinator)
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id, module=silo)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=ROUNDS, ready_after_s=2))
        run_id = loopback.start_run(plan, adapter, token="search")
        outcomes = []
        for status in loopback.watch(run_id):
            ended = [one["outcome"] for one in status.get("finished", ())]
            outcomes += ended
            if ended:
                held = memory(loopback.pid("coordinator")) + disk(loopback.data_dir)
                with_the_sum |= any(sum_needle() in haystack for haystack in held)
                for silo_id in cf.SILOS:
                    at_coordinator[silo_id] |= found(held, silo_id)
        assert outcomes == ["aggregated"] * ROUNDS
        at_silos = {silo_id: memory(loopback.pid(silo_id)) for silo_id in cf.SILOS}
    return at_coordinator, with_the_sum, at_silos


@pytest.mark.long
def test_with_masks_only_the_sum_is_at_the_coordinator(tmp_path):
    at_coordinator, with_the_sum, at_silos = run_once(tmp_path, masks=True)
    assert with_the_sum
    for silo_id in cf.SILOS:
        assert at_coordinator[silo_id] == set()
        # The search is able to find it where it is allowed to be.
        assert "float32" in found(at_silos[silo_id], silo_id)
        for other in set(cf.SILOS) - {silo_id}:
            assert found(at_silos[other], silo_id) == set()


@pytest.mark.long
def test_without_masks_the_same_search_finds_it(tmp_path):
    at_coordinator, _, _ = run_once(tmp_path, masks=False)
    assert all("ring" in names for names in at_coordinator.values()), at_coordinator


def test_the_search_finds_every_encoding_it_looks_for(tmp_path):
    """One process that holds all of them in memory, and a directory that holds them in a file."""
    content = b"\x00".join(needles(cf.SILOS[1]).values())
    (tmp_path / "held").write_bytes(content)
    code = (
        "import sys, pathlib\n"
        "held = pathlib.Path(sys.argv[1]).read_bytes()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "held")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        holder.stdout.readline()
        in_memory = memory(holder.pid)
        holder.stdin.close()
    every = set(needles(cf.SILOS[1]))
    assert found(in_memory, cf.SILOS[1]) == every
    assert found(disk(tmp_path), cf.SILOS[1]) == every
    assert found(in_memory, cf.SILOS[2]) == set()
