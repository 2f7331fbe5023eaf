"""What a data set has spent, signed: it says all of the ledger, and no changed byte of it passes.

Hostile here is a file that came from elsewhere: cut, edited, of another kind, of another key.
"""

import copy
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dp.errors import LedgerRolledBackError, OpeningError
from dp.ledger.opening import carried_fields
from secagg import suite
from silo_agent.books.ledger import LEDGER_FILE, open_ledger
from silo_agent.books.local_store import LocalStore
from silo_agent.books.spent import (
    MAX_FILE_BYTES,
    begin_ledger,
    is_newest,
    opening_of,
    read_spent,
    require_can_begin,
    spent_here,
    write_spent,
)
from silo_agent.errors import ConfigError, LocalStoreError, SpentFileError
from silo_agent.policy.document import Policy
from tests.kit.dp.ledgers import entry, none_entry, opened, trained

NOW = 1_800_000_000


def identity_of(silo_id="hospital-a", key=None, federation="oncology"):
    return SimpleNamespace(
        federation=federation,
        silo_id=silo_id,
        signing_key=key or Ed25519PrivateKey.from_private_bytes(bytes(31) + b"k"),
    )


def spend(directory, rounds=1):
    """A training, an upload that it led to and one in mode none, for each round."""
    directory.mkdir(exist_ok=True)
    with opened(directory / LEDGER_FILE) as ledger:
        for number in range(rounds):
            trained(ledger, number)
            ledger.reserve(entry(number))
            ledger.reserve(none_entry(number, run="bare"))
        LocalStore(directory).set_ledger_head(*ledger.head())
        return ledger.head(), ledger.carried()


@pytest.fixture
def written(tmp_path):
    spend(tmp_path / "old")
    path = tmp_path / "file.json"
    write_spent(path, spent_here(tmp_path / "old", identity_of(), at_unix_s=NOW))
    return path


def test_the_file_says_everything_that_the_ledger_does(tmp_path, written):
    old = tmp_path / "old"
    with opened(old / LEDGER_FILE) as ledger:
        # As beside a daemon: the ledger is held.
        made = spent_here(old, identity_of(), at_unix_s=NOW)
        head, carried = ledger.head(), ledger.carried()
    read = read_spent(written)
    assert read.signed_bytes() == made.signed_bytes()
    assert (read.silo_id, read.federation, read.at_unix_s) == ("hospital-a", "oncology", NOW)
    assert (read.seq, read.sha256) == head
    assert carried_fields(read.carried) == carried_fields(carried)
    assert read.carried.unprotected == 1
    assert read.carried.epsilons(1e-5)["task"] == carried.epsilons(1e-5)["task"]
    assert written.stat().st_mode & 0o777 == 0o600
    assert is_newest(old, read)
    spend(tmp_path / "old-2", rounds=2)
    assert not is_newest(tmp_path / "old-2", read)


def test_a_new_ledger_begins_with_it_and_cannot_be_lost_and_begun_anew(tmp_path, written):
    new = tmp_path / "new"
    new.mkdir()
    carried = opening_of([read_spent(written)], federation="oncology")
    require_can_begin(new, carried)
    assert list(new.iterdir()) == []
    for _ in range(2):
        # The second call finishes what a crash kept from being said to have worked.
        begin_ledger(new, carried)
    require_can_begin(new, carried)
    with opened(new / LEDGER_FILE) as ledger:
        assert carried_fields(ledger.carried()) == carried_fields(carried)
    # What is exported there holds what came from here.
    again = spent_here(new, identity_of("hospital-b"), at_unix_s=NOW)
    assert carried_fields(again.carried) == carried_fields(carried)
    (new / LEDGER_FILE).unlink()
    with pytest.raises(ConfigError, match="is missing"):
        open_ledger(SimpleNamespace(data_dir=new), Policy(), LocalStore(new))
    assert not (new / LEDGER_FILE).exists()
    with pytest.raises(LocalStoreError, match="is missing"):
        require_can_begin(new, carried)


def signs(directory, run, cohort):
    """A sum without noise, of these silos."""
    directory.mkdir(exist_ok=True)
    with opened(directory / LEDGER_FILE) as ledger:
        ledger.reserve(none_entry(0, run=run))
        ledger.mark_agreed(none_entry(0, run=run).identity, cohort=cohort)
        LocalStore(directory).set_ledger_head(*ledger.head())


def left(directory, **told):
    """The file of a silo that leaves."""
    at_unix_s = told.pop("at_unix_s", NOW)
    path = directory / "left.json"
    write_spent(path, spent_here(directory, identity_of(**told), at_unix_s=at_unix_s))
    return read_spent(path)


def joins(directory, *documents, federation="oncology"):
    directory.mkdir()
    begin_ledger(directory, opening_of(documents, federation=federation))
    with opened(directory / LEDGER_FILE) as ledger:
        return ledger.cohort


def test_a_silo_that_leaves_and_joins_anew_signs_for_nobody_who_was_not_there(tmp_path, written):
    """Nor does a way round over another federation begin it anew."""
    assert json.loads(written.read_bytes())["format"] == "chorale-spent/1"
    assert joins(tmp_path / "of-an-earlier-release", read_spent(written)) is None

    signs(tmp_path / "old", "last", ("a", "b", "c"))
    first = left(tmp_path / "old")
    assert json.loads((tmp_path / "old" / "left.json").read_bytes())["format"] == "chorale-spent/2"
    assert joins(tmp_path / "same", first) == {"a", "b", "c"}
    assert joins(tmp_path / "again", left(tmp_path / "same")) == {"a", "b", "c"}

    assert joins(tmp_path / "other", first, federation="cardiology") is None
    signs(tmp_path / "other", "there", ("a", "x"))
    back = left(tmp_path / "other", federation="cardiology")
    assert joins(tmp_path / "back", back) == {"a", "b", "c"}


def test_of_two_files_the_newer_says_whose_the_sum_was(tmp_path):
    for name, cohort in (("one", ("a", "b", "c")), ("two", ("a", "b"))):
        signs(tmp_path / name, name, cohort)
    spend(tmp_path / "three")
    older = left(tmp_path / "one", at_unix_s=NOW)
    newer = left(tmp_path / "two", at_unix_s=NOW + 1)
    # It knows of none, so it says nothing against the others.
    newest = left(tmp_path / "three", at_unix_s=NOW + 2)
    assert joins(tmp_path / "forth", older, newest, newer) == {"a", "b"}
    assert joins(tmp_path / "back", newer, older, newest) == {"a", "b"}


def test_a_cohort_in_a_file_cannot_be_changed_left_out_or_its_own_twice(tmp_path):
    signs(tmp_path / "old", "last", ("a", "b", "c"))
    path = tmp_path / "old" / "left.json"
    made = left(tmp_path / "old")
    document = json.loads(path.read_bytes())
    changes = [
        changed(document, ("carried", "cohort"), ["a", "b", "c", "d"]),
        changed(document, ("carried", "elsewhere"), {"cardiology": ["a"]}),
        changed(document, ("format",), "chorale-spent/1"),
    ]
    bare = copy.deepcopy(document)
    del bare["carried"]["cohort"]
    for forged in (*changes, bare, changed(bare, ("format",), "chorale-spent/1")):
        path.write_text(json.dumps(forged))
        with pytest.raises(SpentFileError, match="not a whole and unchanged file"):
            read_spent(path)
    with pytest.raises(SpentFileError, match="other federations than itself"):
        replace(made, carried=replace(made.carried, elsewhere={"oncology": ("a",)}))
    many = [
        replace(made, ledger_id=bytes([k]) * 32, federation=f"federation-{k}") for k in range(16)
    ]
    with pytest.raises(SpentFileError, match="16 other federations"):
        opening_of(many, federation="oncology")


def test_a_ledger_that_began_otherwise_is_left_as_it_is(tmp_path, written):
    carried = opening_of([read_spent(written)], federation="oncology")
    spend(tmp_path / "in-use")
    before = (tmp_path / "in-use" / LEDGER_FILE).read_bytes()
    with pytest.raises(SpentFileError, match="goes on counting"):
        require_can_begin(tmp_path / "in-use", carried)
    with pytest.raises(OpeningError):
        begin_ledger(tmp_path / "in-use", carried)
    assert (tmp_path / "in-use" / LEDGER_FILE).read_bytes() == before


def test_files_of_several_federations_add_up_and_one_ledger_counts_once(tmp_path, written):
    first = read_spent(written)
    spend(tmp_path / "other", rounds=3)
    second = spent_here(tmp_path / "other", identity_of("b"), at_unix_s=NOW)
    both = opening_of([first, second], federation="oncology")
    assert both.unprotected == 4
    for kind, cost in both.kinds.items():
        parts = [one.carried.kinds[kind] for one in (first, second)]
        assert (cost.rdp == parts[0].rdp + parts[1].rdp).all()
        assert cost.failure == parts[0].failure + parts[1].failure
    # An older file of the same ledger is no second data set.
    with opened(tmp_path / "old" / LEDGER_FILE) as ledger:
        ledger.reserve(entry(7))
        LocalStore(tmp_path / "old").set_ledger_head(*ledger.head())
    newer = spent_here(tmp_path / "old", identity_of(), at_unix_s=NOW + 5)
    with pytest.raises(SpentFileError, match="the newer one alone"):
        opening_of([first, second, newer], federation="oncology")
    assert opening_of([], federation="oncology") is None


def test_no_file_is_made_of_a_ledger_that_went_back(tmp_path):
    spend(tmp_path / "old")
    copy_of = (tmp_path / "old" / LEDGER_FILE).read_bytes()
    with opened(tmp_path / "old" / LEDGER_FILE) as ledger:
        ledger.reserve(entry(7))
        LocalStore(tmp_path / "old").set_ledger_head(*ledger.head())
    (tmp_path / "old" / LEDGER_FILE).write_bytes(copy_of)
    with pytest.raises(LedgerRolledBackError):
        spent_here(tmp_path / "old", identity_of(), at_unix_s=NOW)
    (tmp_path / "old" / LEDGER_FILE).unlink()
    with pytest.raises(LocalStoreError, match="newest copy"):
        spent_here(tmp_path / "old", identity_of(), at_unix_s=NOW)
    # None was ever begun, though a crash left bytes of its first record.
    (tmp_path / LEDGER_FILE).write_bytes(bytes(9))
    assert spent_here(tmp_path, identity_of(), at_unix_s=NOW) is None


def test_a_file_cut_at_any_place_is_refused(written):
    whole = written.read_bytes()
    # The line feed at the end says nothing.
    for length in [*range(0, len(whole) - 1, 97), len(whole) - 2]:
        written.write_bytes(whole[:length])
        with pytest.raises(SpentFileError, match="budget export"):
            read_spent(written)


def leaves(document, path=()):
    """Every place of a document that holds a value."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield from leaves(value, (*path, name))
    elif isinstance(document, list):
        # One figure of each curve stands for all of them.
        yield from leaves(document[0], (*path, 0))
    else:
        yield path, document


def changed(document, path, value):
    made = copy.deepcopy(document)
    place = made
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return made


def edited(value):
    """The same type and form, another value."""
    if isinstance(value, bool | int | float):
        return value + 1
    return value[:-1] + ("1" if value[-1] != "1" else "2")


def test_no_value_can_be_edited_or_replaced_by_another_type(written):
    document = json.loads(written.read_bytes())
    count = 0
    for path, value in leaves(document):
        others = [None, True, [], {}, "", "\x00", -1, 1 << 80, 1e400, "a" * 1000, [[]], -0.5]
        for other in (edited(value), *(other for other in others if other != value)):
            written.write_text(json.dumps(changed(document, path, other)))
            with pytest.raises(SpentFileError, match="not a whole and unchanged file"):
                read_spent(written)
            count += 1
    assert count > 200
    for extra in ({**document, "more": 1}, {k: v for k, v in document.items() if k != "carried"}):
        written.write_text(json.dumps(extra))
        with pytest.raises(SpentFileError, match="a field is missing"):
            read_spent(written)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"[" * 60_000,
        b"\xff\xfe",
        b'{"format": "chorale-audit-heads/1", "heads": []}',
        b"9" * 10_000,
        b" " * (MAX_FILE_BYTES + 1),
    ],
    ids=len,
)
def test_what_is_another_kind_of_file_is_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(SpentFileError, match="not a whole and unchanged file"):
        read_spent(path)


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "absent", "/dev/zero"):
        with pytest.raises(SpentFileError):
            read_spent(path)


def test_a_key_for_which_anybody_signs_is_refused(written):
    document = json.loads(written.read_bytes())
    # The neutral point: (R, 0) is a signature of everything under it.
    document["verification_key"] = (b"\x01" + bytes(31)).hex()
    document["signature"] = (b"\x01" + bytes(63)).hex()
    written.write_text(json.dumps(document))
    with pytest.raises(SpentFileError, match="small order"):
        read_spent(written)


def test_a_signature_of_another_purpose_is_none_of_this(tmp_path, written):
    read = read_spent(written)
    key = identity_of().signing_key
    document = json.loads(written.read_bytes())
    signed = read.signed_bytes().replace(b"chorale/v1/spent", b"chorale/v1/renew")
    document["signature"] = suite.sign(key, signed).hex()
    written.write_text(json.dumps(document))
    with pytest.raises(SpentFileError, match="signature"):
        read_spent(written)
