"""What the doctor says of the machine's arithmetic."""

import pytest

from ops.doctor.checkup import Outcome
from silo_agent.config import SiloConfig
from silo_agent.doctor.machine import judge_gpu
from tests.kit.paths import ROOT


@pytest.mark.parametrize(("capability", "slow"), [("AVX512", False), ("AVX2", True)])
def test_a_cpu_that_is_slow_in_16_bits_is_told_of(tmp_path, monkeypatch, capability, slow):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    base = ROOT / "lab" / "base_model"
    (tmp_path / "silo.toml").write_text(f'base_model = "{base}"\nenvironments = ["craft"]\n')
    found = judge_gpu(SiloConfig.load(tmp_path))
    assert found.outcome == Outcome.WARNING
    assert ("slower in bfloat16" in found.found) == slow
    assert ('dtype = "float32"' in found.fix) == slow
