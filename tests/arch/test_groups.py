"""Tests of one group share what their module set up: they must run in one worker."""

import os

import pytest

pytestmark = pytest.mark.xdist_group("groups")


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process")
@pytest.mark.parametrize("number", range(2))
def test_workers_know_the_group(request, number):
    # What the scheduler of `--dist loadgroup` splits on.
    assert request.node.nodeid.endswith("@groups")
