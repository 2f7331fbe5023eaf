"""The benchmark of a worker's memory runs from end to end, at sizes that say nothing."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from tests.kit.paths import ROOT

# A library may be called ``benchmarks`` too.
SPEC = spec_from_file_location("lab_memory", ROOT / "benchmarks" / "lab_memory.py")
lab_memory = sys.modules["lab_memory"] = module_from_spec(SPEC)
SPEC.loader.exec_module(lab_memory)

TINY = {**lab_memory.SMOLLM2_135M, "vocab_size": 1024, "hidden_size": 72, "num_hidden_layers": 2}


@pytest.mark.long
def test_a_tiny_shape_is_measured_killed_and_goes_on(capsys):
    lab_memory.main(["--silos", "5", "--per-round", "3"], shape=TINY)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["silos"], figures["per_round"]) == (5, 3)
    assert figures["gone_on_equal"]
    assert all(peak > 100 for peak in figures["peak_mib"].values())
    assert 0.9 < figures["ratio"] < 1.5


def test_the_shape_is_smollm2s(tmp_path):
    shape = lab_memory.SMOLLM2_135M
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576
    assert 49_152 * 576 + 30 * layer + 576 == 134_515_008
    assert lab_memory.random_base(
        tmp_path, {**shape, "vocab_size": 1024, "num_hidden_layers": 1}
    ) == (1024 * 576 + layer + 576)
