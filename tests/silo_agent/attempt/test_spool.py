"""The spooled upload: durable, identical on every read, once per identity, damage found."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from secagg import messages
from secagg.descriptor import AggregationId
from secagg.digest_tree import BLAKE3, SHA256, TreeHasher
from secagg.messages import MaskedInputHeader
from silo_agent.attempt.spool import Spool
from silo_agent.errors import SpoolError

DESCRIPTOR = bytes(range(32))
IDENTITY = AggregationId(run_id="run/1", round=3, step=0, part=0, attempt=1)
VECTOR = (np.arange(700_000, dtype=np.uint64) * 2_654_435_761 % 2**32).astype(np.uint32)
CONTENT = VECTOR.astype("<u4").tobytes()


def header_of(vector: np.ndarray) -> MaskedInputHeader:
    content = vector.astype("<u4").tobytes()
    return MaskedInputHeader(
        silo_id="silo-a",
        length_bytes=max(1, len(content)),
        masked_sha256=hashlib.sha256(content).digest(),
        signature=bytes(range(64)),
    )


def write(directory: Path, identity: AggregationId, vector: np.ndarray) -> Spool:
    return Spool.write(
        directory, identity, vector, header=header_of(vector), descriptor_sha256=DESCRIPTOR
    )


def find(directory: Path, identity: AggregationId) -> Spool:
    """As a later process does, which knows the directory alone."""
    for path in directory.iterdir():
        spool = Spool.open(path)
        if spool.identity == identity:
            spool.verify()
            return spool
    raise SpoolError("there is none")


def test_a_spool_survives_and_gives_back_the_same_bytes(tmp_path: Path):
    written = write(tmp_path / "spool", IDENTITY, VECTOR)
    found = find(tmp_path / "spool", IDENTITY)
    for spool in (written, found):
        assert spool.length_bytes == len(CONTENT)
        assert spool.identity == IDENTITY
        assert spool.header == header_of(VECTOR)
        assert spool.descriptor_sha256 == DESCRIPTOR
        assert spool.sha256 == hashlib.sha256(CONTENT).digest()
        chunks = list(spool.chunks())
        assert [len(chunk) for chunk in chunks] == [1 << 20, 1 << 20, len(CONTENT) - (2 << 20)]
        assert b"".join(chunks) == CONTENT


@pytest.mark.parametrize("offset", [0, 1, (1 << 20) - 1, 1 << 20, len(CONTENT) - 1, len(CONTENT)])
def test_reading_resumes_at_any_offset(tmp_path: Path, offset: int):
    spool = write(tmp_path, IDENTITY, VECTOR)
    assert b"".join(spool.chunks(offset, 1000)) == CONTENT[offset:]


@pytest.mark.parametrize("offset", [-1, len(CONTENT) + 1])
def test_an_offset_outside_is_refused(tmp_path: Path, offset: int):
    with pytest.raises(SpoolError, match="outside"):
        write(tmp_path, IDENTITY, VECTOR).chunks(offset)


def test_one_identity_is_written_once(tmp_path: Path):
    write(tmp_path, IDENTITY, VECTOR)
    with pytest.raises(SpoolError, match="already"):
        write(tmp_path, IDENTITY, VECTOR[::-1].copy())
    assert b"".join(find(tmp_path, IDENTITY).chunks()) == CONTENT


def test_parts_and_runs_have_spools_of_their_own(tmp_path: Path):
    others = [replace(IDENTITY, part=1), replace(IDENTITY, run_id="run/2", round=9)]
    write(tmp_path, IDENTITY, VECTOR[:10])
    for number, identity in enumerate(others, start=11):
        write(tmp_path, identity, VECTOR[:number])
    lengths = [find(tmp_path, identity).length_bytes for identity in (IDENTITY, *others)]
    assert lengths == [4 * n for n in (10, 11, 12)]


@pytest.mark.parametrize("later", [{"attempt": 2}, {"step": 1}, {"round": 4, "attempt": 1}])
def test_what_is_later_deletes_what_a_crash_left_behind(tmp_path: Path, later: dict[str, int]):
    write(tmp_path, IDENTITY, VECTOR[:10])
    write(tmp_path, replace(IDENTITY, run_id="other"), VECTOR[:10])
    write(tmp_path, replace(IDENTITY, **later), VECTOR[:10])
    with pytest.raises(SpoolError, match="there is none"):
        find(tmp_path, IDENTITY)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_earlier_deletes_nothing(tmp_path: Path):
    for attempt in (2, 1):
        write(tmp_path, replace(IDENTITY, attempt=attempt), VECTOR[:10])
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("where", [0, 30, 100, 200, 400, 600, -1, -400_000])
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, where: int):
    path = write(tmp_path, IDENTITY, VECTOR).path
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(SpoolError):
        Spool.open(path).verify()


@pytest.mark.parametrize(
    "change", [lambda c: c[:-1], lambda c: c + b"\0", lambda c: b"", lambda c: c[:50]]
)
def test_a_cut_or_longer_file_is_found(tmp_path: Path, change):
    path = write(tmp_path, IDENTITY, VECTOR).path
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SpoolError):
        Spool.open(path).verify()


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"identity": [1], "header": "", "descriptor_sha256": ""}', "x"]
)
def test_a_first_line_that_says_nothing_useful_is_damage(tmp_path: Path, text: str):
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = tmp_path / "0123456789abcdef.3.0.0.1.spool"
    path.write_bytes(f"{digest} {text}\n".encode())
    with pytest.raises(SpoolError, match="damaged"):
        Spool.open(path)


def test_the_longest_names_fit_the_first_line(tmp_path: Path):
    identity = AggregationId(
        run_id="r" * 128, round=2**32 - 1, step=2**32 - 1, part=2**32 - 1, attempt=2**32 - 1
    )
    vector = VECTOR[:4]
    header = replace(header_of(vector), silo_id="s" * 63)
    Spool.write(tmp_path, identity, vector, header=header, descriptor_sha256=DESCRIPTOR)
    assert find(tmp_path, identity).header == header


def test_a_vector_of_another_length_than_signed_is_refused(tmp_path: Path):
    with pytest.raises(SpoolError, match="signs 40 bytes, not 36"):
        Spool.write(
            tmp_path, IDENTITY, VECTOR[:9], header=header_of(VECTOR[:10]),
            descriptor_sha256=DESCRIPTOR,
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_nothing_secret_is_in_the_file(tmp_path: Path):
    path = write(tmp_path, IDENTITY, VECTOR[:4]).path
    line, _, rest = path.read_bytes().partition(b"\n")
    said = json.loads(line.partition(b" ")[2])
    assert set(said) == {"identity", "descriptor_sha256", "header"}
    assert rest == VECTOR[:4].tobytes()


def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_short_upload(tmp_path: Path):
    spool = write(tmp_path, IDENTITY, VECTOR)
    chunks = spool.chunks()
    next(chunks)
    with spool.path.open("r+b") as file:
        file.truncate(1 << 20)
    with pytest.raises(SpoolError, match="shorter"):
        list(chunks)


def test_a_spool_moved_under_another_identity_is_refused(tmp_path: Path):
    spool = write(tmp_path, IDENTITY, VECTOR[:10])
    moved = spool.path.rename(spool.path.with_name(spool.path.name.replace(".1.spool", ".2.spool")))
    with pytest.raises(SpoolError, match="another aggregation"):
        Spool.open(moved)


@pytest.mark.parametrize(
    "vector", [np.zeros(3, np.int32), np.zeros((2, 2), np.uint32), np.zeros(0, np.uint32)]
)
def test_only_flat_ring_elements_are_spooled(tmp_path: Path, vector: np.ndarray):
    with pytest.raises(SpoolError, match="uint32"):
        write(tmp_path, IDENTITY, vector)


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(_descriptor: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(SpoolError, match="no space left"):
        write(tmp_path, IDENTITY, VECTOR)
    assert not list(tmp_path.iterdir())


def test_the_file_and_its_directory_are_flushed_before_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import os

    flushed = []
    real = os.fsync

    def record(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().is_dir())
        real(descriptor)

    monkeypatch.setattr("os.fsync", record)
    write(tmp_path, IDENTITY, VECTOR)
    assert flushed == [False, True]


def test_only_the_owner_can_read_it(tmp_path: Path):
    assert write(tmp_path, IDENTITY, VECTOR[:4]).path.stat().st_mode & 0o777 == 0o600


def test_deleting_twice_is_allowed(tmp_path: Path):
    spool = write(tmp_path, IDENTITY, VECTOR[:4])
    spool.delete()
    spool.delete()
    assert not list(tmp_path.iterdir())


# Suite v2 ----------------------------------------------------------------------------------------


def tree(vector: np.ndarray, digest_id: int = SHA256) -> tuple[MaskedInputHeader, bytes]:
    """The signed header of suite v2, and the leaf list."""
    hasher = TreeHasher(vector.nbytes, digest_id, threads=1)
    hasher.update(vector.data)
    debit = messages.DebitHead(seq=7, sha256=bytes(range(32)))
    header = replace(header_of(vector), masked_sha256=hasher.root(), debit=debit)
    return header, hasher.leaves()


def write_tree(directory: Path, digest_id: int = SHA256) -> Spool:
    header, leaves = tree(VECTOR, digest_id)
    return Spool.write(
        directory, IDENTITY, VECTOR, header=header, descriptor_sha256=DESCRIPTOR,
        digest_id=digest_id, leaves=leaves,
    )  # fmt: skip


@pytest.mark.parametrize("digest_id", [SHA256, BLAKE3])
def test_a_later_process_has_the_leaf_list_and_the_same_bytes(tmp_path: Path, digest_id: int):
    write_tree(tmp_path, digest_id)
    found = find(tmp_path, IDENTITY)
    assert (found.header, found.leaves) == tree(VECTOR, digest_id)
    assert b"".join(found.chunks()) == CONTENT


def test_suite_v1_has_no_leaf_list(tmp_path: Path):
    assert write(tmp_path, IDENTITY, VECTOR).leaves == b""


@pytest.mark.parametrize("where", [500, 1000, -1, -(1 << 20), -1_700_000])
def test_a_flipped_bit_in_bytes_or_leaves_is_found(tmp_path: Path, where: int):
    path = write_tree(tmp_path).path
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(SpoolError):
        Spool.open(path).verify()


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: c + b"\0"])
def test_a_cut_or_longer_vector_is_not_that_of_its_tree(tmp_path: Path, change):
    path = write_tree(tmp_path).path
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SpoolError, match="not what was written"):
        Spool.open(path).verify()


@pytest.mark.parametrize("change", [lambda x: x[:-32], lambda x: x[32:] + x[:32], lambda _: b""])
def test_another_leaf_list_is_neither_written_nor_read(tmp_path: Path, change):
    header, leaves = tree(VECTOR)
    with pytest.raises(SpoolError, match="leaf list"):
        Spool.write(
            tmp_path, IDENTITY, VECTOR, header=header, descriptor_sha256=DESCRIPTOR,
            digest_id=SHA256, leaves=change(leaves),
        )  # fmt: skip
    path = write_tree(tmp_path).path
    line, _, rest = path.read_bytes().partition(b"\n")
    said = json.loads(line.partition(b" ")[2])
    said["leaves"] = change(leaves).hex()
    text = json.dumps(said).encode()
    path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n" + rest)
    with pytest.raises(SpoolError, match="leaf list"):
        Spool.open(path)


def test_the_longest_leaf_list_and_most_rejected_fit_the_first_line(tmp_path: Path):
    # The file is sparse; only its first line is read.
    words, silos = 2**27 + 2048, [f"{'s' * 60}{number:03}" for number in range(200)]
    leaves = bytes(32 * -(-4 * words // (1 << 20)))
    from secagg import digest_tree
    from silo_agent.attempt import spool

    header = replace(
        tree(VECTOR)[0],
        silo_id="a",
        length_bytes=4 * words,
        masked_sha256=digest_tree.root_of(leaves, 4 * words, SHA256),
        rejected=tuple(silos),
    )
    path = tmp_path / spool._name(IDENTITY)
    path.write_bytes(spool._line(IDENTITY, header, DESCRIPTOR, SHA256, leaves))
    assert Spool.open(path).leaves == leaves
