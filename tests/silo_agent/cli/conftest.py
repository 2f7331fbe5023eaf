"""What several commands are asked about."""

from pathlib import Path

import pytest

from tests.kit.silo_agent.policy_samples import NO_MODEL, PLAN, POLICY, edited


@pytest.fixture
def silo(tmp_path: Path) -> Path:
    """A silo without a base model, whose policy allows the sample plan."""
    (tmp_path / "silo.toml").write_text('environments = ["craft", "maze"]')
    (tmp_path / "policy.toml").write_text(edited(POLICY, NO_MODEL))
    (tmp_path / "plan.toml").write_text(edited(PLAN, NO_MODEL))
    return tmp_path
