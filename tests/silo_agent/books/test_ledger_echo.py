"""The coordinator's echo shows a silo that its own ledger went back in time."""

import shutil
from dataclasses import replace

import pytest

from dp.ledger.ledger import Identity, Ledger
from secagg import suite
from secagg.descriptor import AggregationId
from secagg.errors import Check, VerificationError
from secagg.messages import DebitHead, KeyBundle, MaskedInputHeader
from silo_agent.books.ledger import require_echoed
from silo_agent.errors import PolicyRefusalError
from silo_agent.line.instruction import EchoedUpload, LedgerEcho
from tests.kit.secagg.secagg_samples import signing_key

ME = "silo-000"
DESCRIPTOR = bytes([9]) * 32
IDENTITY = AggregationId(run_id="run-1", round=3, step=1, part=0, attempt=2)


def opened(path):
    return Ledger.open(path, delta=1e-5, caps={"silo": 1.0})


def mark(ledger, number):
    ledger.mark_joined(Identity("run-1", number, 0, 0, 1), DESCRIPTOR)

    return Identity("run-1", number, 0, 0, 1)


def echo_of(head, *, silo_id=ME, key=None):
    seq, sha256 = head
    unsigned = KeyBundle(
        silo_id=silo_id, cipher_key=bytes(32), mask_key=bytes(32), ledger_seq=seq,
        ledger_sha256=sha256, families=(), signature=bytes(64),
    )  # fmt: skip
    signature = suite.sign(key or signing_key(ME), unsigned.signed_bytes(DESCRIPTOR))
    return LedgerEcho(
        identity=IDENTITY,
        bundle=replace(unsigned, signature=signature),
        descriptor_sha256=DESCRIPTOR,
    )


def require(ledger, echo):
    require_echoed(ledger, echo, silo_id=ME, signing_key=signing_key(ME))


@pytest.fixture
def heads(tmp_path):
    """A ledger after each of three records, and a copy of its file after the first."""
    path, found = tmp_path / "ledger", []
    with opened(path) as ledger:
        for number in range(1, 4):
            mark(ledger, number)
            found.append(ledger.head())
            if number == 1:
                shutil.copy(path, tmp_path / "old")
    return found


def test_every_head_of_the_ledger_is_accepted(tmp_path, heads):
    with opened(tmp_path / "ledger") as ledger:
        require(ledger, None)
        for head in heads:
            require(ledger, echo_of(head))


def test_an_older_copy_is_refused_in_public_and_says_what_to_do(tmp_path, heads):
    with opened(tmp_path / "old") as ledger:
        require(ledger, echo_of(heads[0]))
        with pytest.raises(PolicyRefusalError) as refused:
            require(ledger, echo_of(heads[2]))
    assert refused.value.public_reason == "ledger"
    assert refused.value.rule == "ledger_rolled_back"
    for said in ("run-1/3/1/0/2", "put the newest copy", "record 3"):
        assert said in refused.value.detail


def test_a_copy_that_went_on_by_itself_is_refused(tmp_path, heads):
    """As many records as before, other ones."""
    with opened(tmp_path / "old") as ledger:
        for number in range(5, 9):
            mark(ledger, number)
        with pytest.raises(PolicyRefusalError):
            require(ledger, echo_of(heads[2]))


@pytest.mark.parametrize(
    "change", ["signature", "head", "other silo", "other key", "other descriptor"]
)
def test_the_coordinator_cannot_make_an_echo_up(tmp_path, heads, change):
    """Neither to stop a silo, nor to learn what its ledger contains."""
    honest = echo_of((7, bytes(32)))
    made_up = {
        "signature": replace(honest, bundle=replace(honest.bundle, signature=bytes(64))),
        "head": replace(honest, bundle=replace(honest.bundle, ledger_seq=8)),
        "other silo": echo_of((7, bytes(32)), silo_id="silo-001"),
        "other key": echo_of((7, bytes(32)), key=signing_key("silo-001")),
        "other descriptor": replace(honest, descriptor_sha256=bytes(32)),
    }[change]
    with opened(tmp_path / "ledger") as ledger:
        with pytest.raises(VerificationError) as refused:
            require(ledger, made_up)
        assert refused.value.check is Check.LEDGER_HEAD
        with pytest.raises(PolicyRefusalError):
            require(ledger, honest)


CTX, MEMBERS = bytes([1]) * 32, bytes([2]) * 32


def upload_of(head, *, silo_id=ME, key=None, members=MEMBERS):
    seq, sha256 = head
    unsigned = MaskedInputHeader(
        silo_id=silo_id, length_bytes=4, masked_sha256=bytes(32), signature=bytes(64),
        debit=DebitHead(seq=seq, sha256=sha256),
    )  # fmt: skip
    signature = suite.sign(key or signing_key(ME), unsigned.signed_bytes(CTX, members))
    header = replace(unsigned, signature=signature)
    return EchoedUpload(header=header, ctx=CTX, members_sha256=MEMBERS)


def test_the_echo_of_an_upload_that_is_in_no_sum_shows_the_debit_that_is_gone(tmp_path, heads):
    """Put back after R0: the bundle's head is still there, the debit of the upload is not."""
    echo = replace(echo_of(heads[0]), upload=upload_of(heads[2]))
    with opened(tmp_path / "ledger") as ledger:
        require(ledger, echo)
    with opened(tmp_path / "old") as ledger, pytest.raises(PolicyRefusalError) as refused:
        require(ledger, echo)
    assert refused.value.rule == "ledger_rolled_back"
    assert "record 3" in refused.value.detail


@pytest.mark.parametrize(
    "change",
    [
        {"silo_id": "silo-001"},
        {"key": signing_key("silo-001")},
        {"members": bytes(32)},
    ],
    ids=["other silo", "other key", "other members"],
)
def test_an_upload_that_this_silo_did_not_sign_says_nothing(tmp_path, heads, change):
    echo = replace(echo_of(heads[0]), upload=upload_of((7, bytes(32)), **change))
    with opened(tmp_path / "ledger") as ledger, pytest.raises(VerificationError) as refused:
        require(ledger, echo)
    assert refused.value.check is Check.DEBIT_HEAD
