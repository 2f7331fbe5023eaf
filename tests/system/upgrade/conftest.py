import pytest

from tests.kit.processes import constant_federation as cf
from tests.system.upgrade.installations import install_both
from tests.system.upgrade.mixed_federation import founded


@pytest.fixture(scope="session")
def installations(tmp_path_factory):
    """The previous release, and this version."""
    return install_both(tmp_path_factory.mktemp("installations"))


@pytest.fixture(scope="session")
def template(tmp_path_factory, installations):
    """Founded by this version; two silos joined with the previous release, two with this one."""
    previous, current = installations
    members = dict(zip(cf.SILOS, (previous, previous, current, current), strict=True))
    directory = tmp_path_factory.mktemp("template")
    with founded(directory, coordinator=current, silos=members) as loopback:
        loopback.stop()
        yield loopback
