"""The root signs the keys that the silos themselves report, and no others."""

import pytest

from lab.loopback import LoopbackError, LoopbackFederation

pytestmark = pytest.mark.xdist_group("fingerprints")

SILOS = ("silo-a", "silo-b", "silo-c")


@pytest.fixture(scope="module")
def proposed(tmp_path_factory):
    """A federation, its proposed roster, and what each silo says of its key."""
    with LoopbackFederation(directory=tmp_path_factory.mktemp("fingerprints")) as federation:
        federation.found()
        federation.start_coordinator()
        for silo_id in SILOS:
            federation.enrol(silo_id)
        roster = federation.directory / "roster.json"
        data = ("--data", str(federation.data_dir))
        federation.chorale("roster", "propose", "--colluding", "1", "--out", str(roster), *data)
        reported = {
            silo_id: federation.silo("status", "--data", str(federation.silo_dir(silo_id)))[
                "key_fingerprint"
            ]
            for silo_id in SILOS
        }
        assert len(set(reported.values())) == len(SILOS)
        yield federation, roster, reported


def sign(proposed, expected, *more):
    federation, roster, _ = proposed
    options = [word for pair in expected.items() for word in ("--expect", "=".join(pair))]
    signed = roster.with_name("signed.json")
    signed.unlink(missing_ok=True)
    try:
        made = federation.chorale(
            "root", "sign", str(roster), "--dir", str(federation.root_dir), "--out", str(signed),
            *options, *more,
        )  # fmt: skip
    except LoopbackError as error:
        assert not signed.exists()
        return str(error)
    assert signed.exists()
    return made


def test_with_every_key_as_reported_nobody_is_asked(proposed):
    reported = proposed[2]
    assert sign(proposed, reported, "--colluding", "1")["compared"] == list(SILOS)
    plain = {silo_id: key.replace(":", "").upper() for silo_id, key in reported.items()}
    assert sign(proposed, plain, "--colluding", "1")["compared"] == list(SILOS)


def test_who_does_not_say_how_many_may_collude_is_asked(proposed):
    reported = proposed[2]
    assert "was not confirmed" in sign(proposed, reported)
    assert "not 2: nothing is signed" in sign(proposed, reported, "--colluding", "2", "--yes")


@pytest.mark.parametrize("more", [(), ("--yes",)])
def test_another_key_is_refused_whatever_else_is_said(proposed, more):
    reported = proposed[2]
    exchanged = {**reported, "silo-b": reported["silo-c"]}
    said = sign(proposed, exchanged, *more)
    assert "root_key" in said
    assert reported["silo-b"] in said
    assert "Nothing is signed" in said
    first_half = {"silo-a": reported["silo-a"][:19]}
    assert "Nothing is signed" in sign(proposed, first_half, *more)


def test_a_silo_that_is_missing_is_refused(proposed):
    reported = proposed[2]
    more = {**reported, "silo-x": reported["silo-a"]}
    assert "silo-x is not in this roster" in sign(proposed, more, "--yes")


def test_with_some_keys_somebody_is_asked(proposed):
    some = {"silo-a": proposed[2]["silo-a"]}
    assert "was not confirmed" in sign(proposed, some)
    assert sign(proposed, some, "--yes")["compared"] == ["silo-a"]


@pytest.mark.parametrize("text", ["silo-a", "=00", "silo-a="])
def test_an_option_of_another_form_is_an_argument(proposed, text):
    federation, roster, _ = proposed
    with pytest.raises(LoopbackError, match=r"SILO=FINGERPRINT|not in this roster"):
        federation.chorale(
            "root", "sign", str(roster), "--dir", str(federation.root_dir), "--expect", text
        )
