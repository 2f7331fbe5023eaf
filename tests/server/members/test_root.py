"""The root key under a passphrase: opened by it alone, and asked for only where there is one."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from federation.membership.roster_change import fingerprint
from secagg.roster import Roster, RosterEntry, verify_roster
from server.cli.root import app
from server.errors import RootKeyError
from server.members.root import create_root, sign
from server.members.roster_file import propose, read_roster, roster_message, write_roster
from server.pki.keys import read_public_key

YES = {"show": str, "confirm": lambda: True}


def roster():
    keys = [Ed25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(4)]
    return Roster(
        federation="oncology",
        epoch=1,
        colluding=1,
        coordinator_key=keys[0],
        entries=tuple(
            RosterEntry(silo_id=name, spiffe_uri=f"spiffe://oncology/silo/{name}",
                        verification_key=key)
            for name, key in zip(("a", "b", "c"), keys[1:], strict=True)
        ),
    )  # fmt: skip


def test_the_passphrase_alone_opens_the_key(tmp_path):
    create_root(tmp_path, passphrase=b"correct horse")
    content = (tmp_path / "root.key").read_bytes()
    assert b"ENCRYPTED PRIVATE KEY" in content
    proposed = roster()
    for given, words in ((None, "no passphrase"), (b"wrong", "does not open")):
        with pytest.raises(RootKeyError, match=words):
            sign(
                proposed,
                tmp_path,
                show=str,
                confirm=lambda: True,
                passphrase=lambda given=given: given,
            )
    signed = sign(
        proposed, tmp_path, show=str, confirm=lambda: True, passphrase=lambda: b"correct horse"
    )
    verify_roster(signed, read_public_key(tmp_path / "root.pub"), 0)


def test_a_key_without_one_goes_on_working_and_nobody_is_asked(tmp_path):
    create_root(tmp_path)

    def asked():
        raise AssertionError("asked for a passphrase that is not there")

    signed = sign(roster(), tmp_path, **YES, passphrase=asked)
    verify_roster(signed, read_public_key(tmp_path / "root.pub"), 0)


def test_the_commands_take_it_from_a_file_or_a_prompt(tmp_path):
    file, proposed = tmp_path / "passphrase", tmp_path / "roster.json"
    file.write_text("correct horse\n")
    file.chmod(0o644)
    write_roster(proposed, roster_message(propose(roster())))
    directory = ("--dir", str(tmp_path / "root"))

    def run(*words, typed=""):
        return CliRunner().invoke(app, [*words, *directory], input=typed)

    assert run("init", "--passphrase-file", str(file)).exit_code != 0
    file.chmod(0o600)
    assert run("init", "--passphrase-file", str(file)).exit_code == 0
    sign_it = ("sign", str(proposed), "--yes")
    assert run(*sign_it).exit_code != 0
    assert run(*sign_it, typed="wrong\n").exit_code != 0
    assert not (tmp_path / "roster.signed.json").exists()
    assert run(*sign_it, typed="correct horse\n").exit_code == 0
    (tmp_path / "roster.signed.json").unlink()
    assert run(*sign_it, "--passphrase-file", str(file)).exit_code == 0
    assert read_roster(tmp_path / "roster.signed.json").roster.epoch == 1
    assert "correct horse" not in (tmp_path / "root" / "root.key").read_text()


def test_another_key_than_expected_is_not_signed(tmp_path):
    create_root(tmp_path)
    proposed = roster()
    reported = {e.silo_id: fingerprint(e.verification_key) for e in proposed.entries}

    def signed(expected, colluding=None, *, says=False):
        shown = []
        sign(
            proposed,
            tmp_path,
            show=shown.append,
            confirm=lambda: says,
            expected=expected,
            colluding=colluding,
        )
        return shown

    (shown,) = signed(reported, proposed.colluding)
    assert f"up to {proposed.colluding} of" in shown
    for says in (False, True):
        with pytest.raises(RootKeyError, match=f"not {proposed.colluding + 1}: nothing is signed"):
            signed(reported, proposed.colluding + 1, says=says)
    for expected, words in (
        ({**reported, "b": reported["c"]}, "another key for b"),
        ({**reported, "x": reported["a"]}, "x is not in this roster"),
        ({"a": reported["a"]}, "not confirmed"),
        ({}, "not confirmed"),
    ):
        with pytest.raises(RootKeyError, match=words):
            signed(expected)
    for some, colluding in ((reported, None), ({"a": reported["a"]}, proposed.colluding)):
        with pytest.raises(RootKeyError, match="not confirmed"):
            signed(some, colluding)
    with pytest.raises(RootKeyError, match="another key for b"):
        signed({"b": reported["c"]}, says=True)
