"""What several folders of these tests ask for."""

import pytest

from server.pki.authority import CertificateAuthority
from tests.kit.server.tls import HOSTS


@pytest.fixture
def pki(tmp_path):
    authority = CertificateAuthority.create("oncology")
    authority.save(tmp_path / "pki")
    authority.issue_server(HOSTS).save_pair(tmp_path / "pki", "server")
    return tmp_path / "pki"
