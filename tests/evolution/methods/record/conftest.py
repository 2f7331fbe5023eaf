"""A silo, its ledger and an adapter, for Fed-SE where units inside the silo are protected."""

from __future__ import annotations

import pytest

from dp.ledger.ledger import Ledger
from evolution.envs import catalogue
from evolution.model.lora import initial_adapter
from tests.kit.evolution import record_round
from tests.kit.evolution.record_round import ALPHA, LOCAL, RANK
from tests.kit.evolution.silos import silos


@pytest.fixture(autouse=True)
def environments(monkeypatch):
    known = {**catalogue.ENVIRONMENTS, **record_round.ENVIRONMENTS}
    monkeypatch.setattr(catalogue, "ENVIRONMENTS", known)


@pytest.fixture
def make_silo(tiny_base, tmp_path):
    with silos(tiny_base, tmp_path, "coin", rank=RANK, alpha=ALPHA) as make:
        yield lambda spec=LOCAL, name="silo", **changes: make(name, privacy=spec, **changes)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"task": 1e9, "user": 1e9}) as opened:
        yield opened


@pytest.fixture
def adapter(tiny_base):
    return initial_adapter(tiny_base, RANK, ALPHA, 0)
