"""The invite line: what goes in comes out, and nothing else does."""

import base64
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.membership.invite import Invite, InviteFormatError, join_statement, parse_invite

INVITE = Invite(
    coordinator_address="coord.example.org:7443",
    enrol_address="coord.example.org:7444",
    federation="oncology",
    silo_id="hospital-a",
    ca_sha256=b"\x01" * 32,
    root_sha256=b"\x02" * 32,
    secret=b"\x03" * 32,
    expires_unix_s=1_900_000_000,
)


def test_round_trip_with_white_space_around():
    assert parse_invite(f"  {INVITE.encode()}\n") == INVITE
    assert INVITE.encode().startswith("chorale1.")


def test_the_secret_is_not_in_the_repr():
    assert "secret" not in repr(INVITE)
    assert repr(INVITE.secret) not in repr(INVITE)


@given(
    secret=st.binary(min_size=32, max_size=32),
    silo_id=st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True),
    expires=st.integers(min_value=1, max_value=2**63 - 1),
)
def test_round_trip_of_any_invite(secret, silo_id, expires):
    invite = dataclasses.replace(INVITE, secret=secret, silo_id=silo_id, expires_unix_s=expires)
    assert parse_invite(invite.encode()) == invite


@given(data=st.data())
def test_any_changed_character_is_refused(data):
    line = INVITE.encode()
    position = data.draw(st.integers(min_value=0, max_value=len(line) - 1))
    character = data.draw(st.characters(min_codepoint=33, max_codepoint=126))
    if line[position] == character:
        return
    with pytest.raises(InviteFormatError):
        parse_invite(line[:position] + character + line[position + 1 :])


@given(cut=st.integers(min_value=0, max_value=len(INVITE.encode()) - 1))
def test_a_cut_paste_is_refused(cut):
    with pytest.raises(InviteFormatError):
        parse_invite(INVITE.encode()[:cut])


@given(st.binary(max_size=300))
def test_noise_is_refused_with_the_typed_error(noise):
    with pytest.raises(InviteFormatError):
        parse_invite("chorale1." + base64.urlsafe_b64encode(noise).decode())


@pytest.mark.parametrize(
    "change",
    [
        {"silo_id": "Hospital"},
        {"silo_id": "a/b"},
        {"federation": "spiffe://x"},
        {"coordinator_address": "no-port"},
        {"enrol_address": "host:1 --evil"},
        {"secret": b"short"},
        {"ca_sha256": b""},
        {"expires_unix_s": 0},
    ],
)
def test_fields_out_of_bounds_are_refused(change):
    with pytest.raises(InviteFormatError):
        dataclasses.replace(INVITE, **change)


def test_an_oversize_line_is_refused_unread():
    with pytest.raises(InviteFormatError):
        parse_invite("chorale1." + "A" * 100_000)


def test_the_join_statement_binds_every_part():
    base = join_statement("f", "s", b"csr")
    assert base != join_statement("g", "s", b"csr")
    assert base != join_statement("f", "t", b"csr")
    assert base != join_statement("f", "s", b"other")
