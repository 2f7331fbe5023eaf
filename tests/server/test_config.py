"""coordinator.toml and the founding of a data directory."""

import json
from dataclasses import replace

import pytest

from ops.address import split_address
from server.audit import AuditLog
from server.config import CoordinatorConfig, write_config
from server.errors import (
    ConfigurationError,
    FoundingError,
    NoCoordinatorError,
    PkiError,
    RootKeyError,
)
from server.members.root import create_root
from server.pki.authority import CertificateAuthority
from server.pki.keys import load_signing_key, public_key_pem, read_public_key
from server.site.founding import Founding, found, renew_admin
from server.store.served import database_in_force

MINIMAL = 'federation = "oncology"\nhost_names = ["coord.example.org", "10.0.0.1"]\n'


def load(tmp_path, text):
    (tmp_path / "coordinator.toml").write_text(text)
    return CoordinatorConfig.load(tmp_path)


def test_defaults(tmp_path):
    config = load(tmp_path, MINIMAL)
    assert config.listen == "0.0.0.0:7443"
    assert config.dial_coordinator == "coord.example.org:7443"
    assert config.dial_enrolment == "coord.example.org:7444"
    assert database_in_force(config) == f"sqlite:///{tmp_path / 'coordinator.db'}"
    assert config.adapters == tmp_path / "adapters"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (MINIMAL + "lissten = 'x:1'\n", "lissten"),
        (MINIMAL + "listen = 'no-port'\n", "listen"),
        (MINIMAL + "listen = '::1:7443'\n", "listen"),
        ('federation = "Bad Name"\nhost_names = ["h"]\n', "federation"),
        ('federation = "f"\nhost_names = []\n', "host_names"),
        ('federation = "f"\n', "host_names"),
        ('host_names = ["https://coord.example.org"]\n', "without https://"),
        ("federation = \n", "coordinator.toml"),
        (MINIMAL + "runbooks_url = 'javascript:alert(1)'\n", "runbooks_url"),
        (MINIMAL + "runbooks_url = 'https:///pages'\n", "runbooks_url"),
        (MINIMAL + "runbooks_url = 'https://user:word@host/pages'\n", "runbooks_url"),
        (MINIMAL + "runbooks_url = 'https://host/pages?of=it'\n", "runbooks_url"),
        (MINIMAL + 'runbooks_url = "https://host/\\"><b>"\n', "runbooks_url"),
        (MINIMAL + "runbooks_url = 'https://host/a\tb'\n", "runbooks_url"),
        (MINIMAL + f"runbooks_url = 'https://host/{'a' * 500}'\n", "runbooks_url"),
    ],
)
def test_refusals_name_the_key(tmp_path, text, named):
    with pytest.raises(ConfigurationError, match=named):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("url", "read"),
    [
        (
            "https://docs.example.org/chorale/operations/",
            "https://docs.example.org/chorale/operations",
        ),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_where_the_runbooks_are(tmp_path, url, read):
    assert load(tmp_path, MINIMAL + f"runbooks_url = '{url}'\n").runbooks_url == read
    assert load(tmp_path, MINIMAL).runbooks_url is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://chorale:very-secret@db/chorale",
        "postgresql://db/chorale?user=chorale&password=very-secret",
        "postgresql://chorale:@db/chorale",
    ],
)
def test_a_password_in_the_file_is_refused_and_not_repeated(tmp_path, monkeypatch, url):
    (tmp_path / "coordinator.toml").write_text(f'host_names = ["h"]\ndatabase_url = "{url}"\n')
    with pytest.raises(ConfigurationError, match="passfile") as caught:
        CoordinatorConfig.load(tmp_path)
    assert "very-secret" not in str(caught.value)
    plain = "postgresql://chorale@db/chorale?passfile=/run/secrets/pgpass"
    (tmp_path / "coordinator.toml").write_text(f'host_names = ["h"]\ndatabase_url = "{plain}"\n')
    assert database_in_force(CoordinatorConfig.load(tmp_path)) == plain
    monkeypatch.setenv("CHORALE_COORDINATOR_DATABASE_URL", url)
    assert database_in_force(CoordinatorConfig.load(tmp_path)) == url


def test_an_absent_file_says_what_to_do(tmp_path):
    with pytest.raises(NoCoordinatorError, match="chorale init"):
        CoordinatorConfig.load(tmp_path)


def test_the_environment_overrides_and_its_strays_are_errors(tmp_path, monkeypatch):
    monkeypatch.setenv("CHORALE_COORDINATOR_LISTEN", "127.0.0.1:9000")
    assert load(tmp_path, MINIMAL).listen == "127.0.0.1:9000"
    monkeypatch.setenv("CHORALE_COORDINATOR_LISSTEN", "x")
    with pytest.raises(ConfigurationError, match="LISSTEN"):
        load(tmp_path, MINIMAL)


def test_ipv6_hosts_are_bracketed(tmp_path):
    config = load(tmp_path, 'federation = "f"\nhost_names = ["fd00::1"]\nlisten = "[::]:7443"\n')
    assert config.dial_coordinator == "[fd00::1]:7443"
    assert split_address("[::]:7443") == ("::", 7443)


def test_text_that_toml_would_misread_is_refused(tmp_path):
    with pytest.raises(ConfigurationError):
        write_config(
            tmp_path,
            federation="f",
            host_names=('h"\nlisten = "x:1',),
            listen="a:1",
            enrol_listen="a:2",
            probes_listen="a:3",
        )


@pytest.fixture
def founding(tmp_path):
    public = create_root(tmp_path / "root")
    return Founding(federation="oncology", hosts=("coord.example.org",), root_public_key=public)


def test_founding_makes_everything_and_nothing_of_the_root_key(tmp_path, founding):
    data = tmp_path / "data"
    config = found(data, founding)
    paths = config.paths
    assert data.stat().st_mode & 0o777 == 0o700
    for key in (paths.pki / "ca.key", paths.pki / "server.key", paths.admin / "admin.key"):
        assert key.stat().st_mode & 0o777 == 0o600
    assert paths.protocol_key.stat().st_mode & 0o777 == 0o600
    assert read_public_key(paths.root_public_key) == read_public_key(founding.root_public_key)
    root_key = load_signing_key(tmp_path / "root" / "root.key").private_bytes_raw()
    pem = (tmp_path / "root" / "root.key").read_bytes()
    for path in data.rglob("*"):
        if path.is_file():
            assert root_key not in path.read_bytes()
            assert pem not in path.read_bytes()
    genesis, created = map(json.loads, AuditLog(paths.audit).tail(2))
    assert genesis["event"] == "genesis"
    assert created["event"] == "federation_created"
    assert created["details"]["federation"] == "oncology"
    ca = CertificateAuthority.load(paths.pki)
    assert genesis["details"]["ca_sha256"] == ca.sha256.hex()


def test_a_root_key_that_anybody_can_sign_for_founds_nothing(tmp_path, founding):
    founding.root_public_key.write_bytes(public_key_pem((1).to_bytes(32, "little")))
    with pytest.raises(FoundingError, match="anybody could sign"):
        found(tmp_path / "data", founding)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hosts": ("https://coord.example.org",)}, "without https://"),
        ({"hosts": ("coord.example.org", "coord.example.org:7443")}, "coord.example.org:7443"),
        ({"hosts": ("[::1]",)}, "brackets"),
        ({"listen": "7443"}, "host:port"),
        ({"probes_listen": "::1:7445"}, "brackets"),
    ],
)
def test_what_could_not_be_served_founds_nothing(tmp_path, founding, changes, said):
    with pytest.raises(FoundingError, match=said):
        found(tmp_path / "data", replace(founding, **changes))
    assert not (tmp_path / "data").exists()


def test_founding_twice_is_refused_and_changes_nothing(tmp_path, founding):
    data = tmp_path / "data"
    found(data, founding)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError, match="not empty"):
        found(data, founding)
    assert before == {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}


def test_renewing_the_admin_certificate(tmp_path, founding):
    config = found(tmp_path / "data", founding)
    before = (config.paths.admin / "admin.pem").read_bytes()
    assert renew_admin(config, "alex") > 0
    assert (config.paths.admin / "admin.pem").read_bytes() != before
    with pytest.raises(PkiError):
        renew_admin(config, "../evil")


def test_a_root_key_is_never_replaced(tmp_path):
    create_root(tmp_path / "root")
    with pytest.raises(RootKeyError, match="never replaced"):
        create_root(tmp_path / "root")
