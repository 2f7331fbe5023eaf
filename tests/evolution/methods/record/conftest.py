"""A silo, its ledger and an adapter, for Fed-SE where units inside the silo are protected."""

from __future__ import annotations

import pytest

from dp.ledger.ledger import Ledger
from evolution.envs import catalogue
from evolution.model.lora import initial_adapter
from tests.kit.evolution import record_round, tiny_base
from tests.kit.evolution.record_round import ALPHA, LOCAL, RANK


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_base.build(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def environments(monkeypatch):
    known = {**catalogue.ENVIRONMENTS, **record_round.ENVIRONMENTS}
    monkeypatch.setattr(catalogue, "ENVIRONMENTS", known)


@pytest.fixture
def make_silo(base, tmp_path):
    made = []

    def make(spec=LOCAL, name="silo", **changes):
        made.append(record_round.make(base, tmp_path / name, spec, **changes))
        return made[-1]

    yield make
    for silo in made:
        silo.close()


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"task": 1e9, "user": 1e9}) as opened:
        yield opened


@pytest.fixture
def adapter(base):
    return initial_adapter(base, RANK, ALPHA, 0)
