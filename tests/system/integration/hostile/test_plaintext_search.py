"""The coordinator never has a silo's plaintext: memory map, disk and database are searched.

What is looked for are the silo's delta as raw float32 and float64, in fixed point (int32, int64)
and as ring elements. The same search must find them in the silo's own process, and in a
coordinator that runs with masks off on both sides; otherwise it could not fail.
"""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.processes.leak_search import files, memory

WINDOW = 16
"""Elements of the pattern that are looked for together."""


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
    environment = {} if masks else {"CHORALE_TEST_PLAINTEXT": "1"}
    coordinator = None if masks else "tests.system.integration.hostile.maskless_coordinator"
    silo = "silo_agent.cli.main" if masks else "tests.kit.processes.faulty_silo"
    with cf.federation(tmp_path, environment=environment) as loopback:
        if coordinator is not None:
            loopback.kill("coordinator")
            loopback.start_coordinator(module=coordinator)
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id, module=silo)
        plan, adapter = cf.write_run(loopback, cf.plan_toml())
        run_id = loopback.start_run(plan, adapter, token="search")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert rounds[0]["outcome"] == "aggregated", last
        time.sleep(0.5)
        at_coordinator = memory(loopback.pid("coordinator")) + disk(loopback.data_dir)
        at_silos = {silo_id: memory(loopback.pid(silo_id)) for silo_id in cf.SILOS}
    return at_coordinator, at_silos


@pytest.mark.long
def test_with_masks_only_the_sum_is_at_the_coordinator(tmp_path):
    at_coordinator, at_silos = run_once(tmp_path, masks=True)
    assert any(sum_needle() in haystack for haystack in at_coordinator)
    for silo_id in cf.SILOS:
        assert found(at_coordinator, silo_id) == set()
        # The search is able to find it where it is allowed to be.
        assert "float32" in found(at_silos[silo_id], silo_id)
        for other in set(cf.SILOS) - {silo_id}:
            assert found(at_silos[other], silo_id) == set()


@pytest.mark.long
def test_without_masks_the_same_search_finds_it(tmp_path):
    at_coordinator, _ = run_once(tmp_path, masks=False)
    seen = {silo_id: found(at_coordinator, silo_id) for silo_id in cf.SILOS}
    assert all("ring" in names for names in seen.values()), seen


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
