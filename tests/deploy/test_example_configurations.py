"""Every configuration that ships is parsed by the code that will read it."""

import re
import shutil

import pytest

from server.config import CoordinatorConfig
from server.store.served import database_in_force
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError, PolicyFileError
from silo_agent.policy.document import Policy
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"


def test_coordinator(tmp_path):
    shutil.copy(EXAMPLES / "coordinator.toml", tmp_path)
    assert CoordinatorConfig.load(tmp_path).federation == "oncology"


def test_what_the_coordinators_example_offers_in_comments(tmp_path):
    lines = (EXAMPLES / "coordinator.toml").read_text().splitlines()
    offered = [line.removeprefix("# ") for line in lines if re.match(r"# \w+ = ", line)]
    assert {line.partition(" = ")[0] for line in offered} >= {
        "database_url", "adapters_url", "runbooks_url",
    }  # fmt: skip
    (tmp_path / "coordinator.toml").write_text("\n".join([*lines, *offered]))
    config = CoordinatorConfig.load(tmp_path)
    assert database_in_force(config).startswith("postgresql://")
    assert config.adapters_url == "s3://bucket/oncology"


def test_silo(tmp_path):
    shutil.copy(EXAMPLES / "silo.toml", tmp_path)
    config = SiloConfig.load(tmp_path)
    assert config.families() == ("babyai", "craft")
    (tmp_path / "silo.toml").write_text((EXAMPLES / "silo.toml").read_text() + "\nthread = 2\n")
    with pytest.raises(ConfigError, match="thread"):
        SiloConfig.load(tmp_path)


def test_policy():
    content = (EXAMPLES / "policy.toml").read_bytes()
    assert Policy.parse(content).privacy.caps() == {"silo": 20.0, "task": 40.0}
    with pytest.raises(PolicyFileError, match="unknown key"):
        Policy.parse(content + b"\n[extra]\n")


def test_every_example_is_known():
    names = {path.name for path in EXAMPLES.glob("*.toml") if not path.name.startswith("plan-")}
    assert names == {"coordinator.toml", "silo.toml", "policy.toml"}
