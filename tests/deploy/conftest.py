"""Fixtures that several files of this folder ask for."""

import pytest

from deploy.grafana.catalogue import Catalogue


@pytest.fixture(scope="module")
def catalogue():
    return Catalogue.live()
