"""Fixtures that several files of this folder ask for."""

from pathlib import Path

import pytest

from tests.kit.evolution import tiny_base


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_base.build(tmp_path_factory.mktemp("base"))
