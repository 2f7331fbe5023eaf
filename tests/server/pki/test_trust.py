"""Which CAs are trusted when, and what is on disk if a rotation is cut anywhere."""

import shutil

import pytest

from server.errors import CaRotationError, PkiError
from server.pki import trust as trust_module
from server.pki.authority import CertificateAuthority
from server.pki.trust import MAX_OVERLAP_S, MIN_OVERLAP_S, Trust

HOUR = 3600


class Clock:
    def __init__(self):
        self.now = 1_800_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pki(tmp_path):
    CertificateAuthority.create("oncology").save(tmp_path / "pki")
    return tmp_path / "pki"


def digests(trust):
    return [trust_module.certificate_sha256(one) for one in trust.certificates()]


def test_before_any_rotation_there_is_the_founding_ca(pki, clock):
    trust = Trust.load(pki, clock=clock)
    founded = CertificateAuthority.load(pki)
    assert digests(trust) == [founded.sha256]
    assert trust.serving.sha256 == trust.issuing.sha256 == founded.sha256
    assert trust.tidy() is None
    assert sorted(path.name for path in pki.iterdir()) == ["ca.key", "ca.pem"]


def test_both_are_trusted_up_to_the_very_second(pki, clock):
    trust = Trust.load(pki, clock=clock)
    old, before = trust.issuing, trust.sha256
    retiring = trust.rotate(HOUR, name="oncology")
    new = trust.issuing
    assert retiring.authority.sha256 == old.sha256 != new.sha256
    assert digests(trust) == [new.sha256, old.sha256]
    assert trust.serving.sha256 == old.sha256
    during = trust.sha256
    clock.now += HOUR - 1
    assert digests(trust) == [new.sha256, old.sha256]
    clock.now += 1
    # Nobody has tidied up yet.
    assert digests(trust) == [new.sha256]
    assert trust.serving.sha256 == new.sha256
    assert len({before, during, trust.sha256}) == 3
    assert trust.tidy() == old.sha256
    assert trust.tidy() is None
    assert digests(Trust.load(pki, clock=clock)) == [new.sha256]


def test_the_old_key_is_gone_from_the_disk_when_the_overlap_is_over(pki, clock):
    trust = Trust.load(pki, clock=clock)
    old_key = (pki / "ca.key").read_bytes()
    trust.rotate(HOUR, name="oncology")
    assert not (pki / "ca.key").exists()
    held = [path for path in pki.rglob("*.key") if path.read_bytes() == old_key]
    assert len(held) == 1
    assert held[0].stat().st_mode & 0o777 == 0o600
    clock.now += HOUR
    trust.tidy()
    assert not [path for path in pki.rglob("*.key") if path.read_bytes() == old_key]


def test_a_second_rotation_follows_the_first_and_not_before_its_end(pki, clock):
    trust = Trust.load(pki, clock=clock)
    trust.rotate(HOUR, name="oncology")
    second = trust.issuing
    with pytest.raises(CaRotationError, match="not over"):
        trust.rotate(HOUR, name="oncology")
    assert trust.issuing.sha256 == second.sha256
    clock.now += HOUR
    trust.rotate(HOUR, name="oncology")
    assert digests(trust) == [trust.issuing.sha256, second.sha256]
    assert len(list((pki / "authorities").iterdir())) == 2


@pytest.mark.parametrize("overlap_s", [0, MIN_OVERLAP_S - 1, MAX_OVERLAP_S + 1, 2**62])
def test_an_overlap_out_of_bounds_changes_nothing(pki, clock, overlap_s):
    trust = Trust.load(pki, clock=clock)
    before = trust.issuing.sha256
    with pytest.raises(CaRotationError):
        trust.rotate(overlap_s, name="oncology")
    assert digests(Trust.load(pki, clock=clock)) == [before]


class PowerCutError(Exception):
    """The machine stopped here."""


def cut_after(monkeypatch, writes):
    """Let that many durable writes happen, then stop."""
    left = [writes]
    real = trust_module.replace_file

    def write(*arguments, **options):
        if left[0] == 0:
            raise PowerCutError
        left[0] -= 1
        real(*arguments, **options)

    monkeypatch.setattr(trust_module, "replace_file", write)
    monkeypatch.setattr("server.pki.authority.replace_file", write)


@pytest.mark.parametrize("writes", range(7))
def test_a_rotation_that_is_cut_leaves_the_old_state_or_the_new_one(
    pki, clock, monkeypatch, writes
):
    old = Trust.load(pki, clock=clock).issuing.sha256
    with monkeypatch.context() as patch:
        cut_after(patch, writes)
        try:
            Trust.load(pki, clock=clock).rotate(HOUR, name="oncology")
        except PowerCutError:
            cut = True
        else:
            cut = False
    # Two CAs with two files each, the manifest, the bundle.
    assert cut is (writes < 6)
    after = Trust.load(pki, clock=clock)
    committed = writes >= 5
    assert (after.issuing.sha256 != old) is committed
    assert digests(after)[-1] == old
    after.tidy()
    assert Trust.load(pki, clock=clock).issuing.sha256 == after.issuing.sha256
    if committed:
        assert not (pki / "ca.key").exists()
        bundle = (pki / "ca.pem").read_bytes()
        assert bundle.count(b"BEGIN CERTIFICATE") == 2
    else:
        # The half-made CA is of no effect, and the next rotation clears it away.
        after.rotate(HOUR, name="oncology")
        assert len(list((pki / "authorities").iterdir())) == 2


@pytest.mark.parametrize("writes", range(2))
def test_the_end_of_an_overlap_that_is_cut_is_made_good(pki, clock, monkeypatch, writes):
    trust = Trust.load(pki, clock=clock)
    trust.rotate(HOUR, name="oncology")
    new = trust.issuing.sha256
    clock.now += HOUR
    with monkeypatch.context() as patch:
        cut_after(patch, writes)
        with pytest.raises(PowerCutError):
            trust.tidy()
    again = Trust.load(pki, clock=clock)
    assert digests(again) == [new]
    again.tidy()
    assert [path.name for path in (pki / "authorities").iterdir()] == [new.hex()]
    assert (pki / "ca.pem").read_bytes().count(b"BEGIN CERTIFICATE") == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 9, "issuing": "", "retiring": null, "retiring_until_unix_s": null}',
        b'{"version": 1, "issuing": "../..", "retiring": null, "retiring_until_unix_s": null}',
        b'{"version": 1, "issuing": 7, "retiring": null, "retiring_until_unix_s": null}',
    ],
)
def test_a_manifest_that_no_rotation_wrote_is_refused(pki, clock, content):
    Trust.load(pki, clock=clock).rotate(HOUR, name="oncology")
    (pki / "trust.json").write_bytes(content)
    with pytest.raises(PkiError):
        Trust.load(pki, clock=clock)


def test_a_ca_that_was_exchanged_under_its_name_is_refused(pki, clock):
    trust = Trust.load(pki, clock=clock)
    old = trust.issuing.sha256
    trust.rotate(HOUR, name="oncology")
    directory = pki / "authorities" / trust.issuing.sha256.hex()
    shutil.rmtree(directory)
    shutil.copytree(pki / "authorities" / old.hex(), directory)
    with pytest.raises(PkiError, match="another one"):
        Trust.load(pki, clock=clock)


def test_reading_changes_nothing(pki, clock):
    trust = Trust.load(pki, clock=clock)
    trust.rotate(HOUR, name="oncology")
    clock.now += HOUR
    before = sorted(str(path) for path in pki.rglob("*"))
    Trust.load(pki, clock=clock).certificates()
    assert sorted(str(path) for path in pki.rglob("*")) == before
