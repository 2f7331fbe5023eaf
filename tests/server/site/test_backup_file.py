"""The backup's file: a reader that accepts only what the writer makes."""

import fcntl
import hashlib
import io
import json
import os
import tarfile
from dataclasses import replace

import pytest

from server.config import DataPaths
from server.errors import BackupError
from server.site import backup_file
from server.site.backup_file import BackupReader, Manifest, Member, write_backup
from server.site.restore import restore

X = hashlib.sha256(b"x").hexdigest()
CONTENTS = {
    "coordinator.toml": b'host_names = ["localhost"]\n',
    "protocol.key": b"key",
    "root.pub": b"",
    "pki/authorities/ab/ca.key": bytes(range(70)) * 10,
    f"adapters/{X[:2]}/{X}": b"x",
    "audit.jsonl": b"a" * (3 * 512),
    "coordinator.db": bytes(range(200)) * 10_000,
}


def member(name, content):
    return Member(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def manifest(contents=CONTENTS, **changes):
    made = Manifest(
        taken_at="2026-01-01T00:00:00+00:00",
        version="1",
        schema="r0007",
        audit_index=0,
        audit_sha256="0" * 64,
        adapters_url="",
        blobs=(),
        files=tuple(member(name, content) for name, content in contents.items()),
    )
    return replace(made, **changes)


def written(contents=CONTENTS, **changes):
    sink = io.BytesIO()
    write_backup(sink, manifest(contents, **changes), contents, at_unix_s=1_700_000_000)
    return sink.getvalue()


def read(content):
    reader = BackupReader(io.BytesIO(content))
    return {one.name: b"".join(pieces) for one, pieces in reader.files()}


class Trickle(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, content):
        self._source = io.BytesIO(content)

    def read(self, size=-1):
        return self._source.read(min(size, 700))


def test_what_is_written_is_read_also_by_tar_and_from_a_pipe():
    content = written()
    assert read(content) == CONTENTS
    reader = BackupReader(Trickle(content))
    assert reader.manifest == manifest()
    assert {one.name: b"".join(pieces) for one, pieces in reader.files()} == CONTENTS
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["manifest.json", *CONTENTS]
        assert archive.extractfile("protocol.key").read() == b"key"
        assert {one.mode for one in archive} == {0o600}


def test_a_file_that_is_cut_anywhere_is_refused():
    content = written()
    for length in (0, 1, 511, 512, 700, 2000, len(content) // 2, len(content) - 1024, 5000):
        with pytest.raises(BackupError):
            read(content[:length])


def test_one_altered_byte_anywhere_is_refused():
    small = {**CONTENTS, "coordinator.db": b"db"}
    content = written(small)
    # The time, the owner and the padding say nothing; everything else must hold.
    refused = 0
    for place in range(0, len(content) - 1024, 7):
        altered = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        try:
            assert read(altered) == small, place
        except BackupError:
            refused += 1
    assert refused > 300


def with_member(name, content=b"x", **fields):
    """A backup whose second member is another one than the manifest says, header and all."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    document = manifest().encode()
    first = tarfile.TarInfo("manifest.json")
    first.size = len(document)
    padded = [part + bytes(-len(part) % 512) for part in (document, content)]
    return (
        first.tobuf(tarfile.GNU_FORMAT)
        + padded[0]
        + info.tobuf(fields.pop("format", tarfile.GNU_FORMAT))
        + padded[1]
        + bytes(1024)
    )


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("coordinator.toml", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("coordinator.toml", {"type": tarfile.LNKTYPE, "linkname": "protocol.key"}),
        ("coordinator.toml", {"type": tarfile.REGTYPE, "linkname": "/etc/passwd"}),
        ("coordinator.toml", {"type": tarfile.CHRTYPE}),
        ("coordinator.toml", {"type": tarfile.FIFOTYPE}),
        ("coordinator.toml", {"type": tarfile.DIRTYPE}),
        ("coordinator.toml", {"type": tarfile.XHDTYPE}),
        ("coordinator.toml", {"type": tarfile.GNUTYPE_LONGNAME}),
        ("coordinator.toml", {"type": tarfile.GNUTYPE_SPARSE}),
        ("../coordinator.toml", {}),
        ("/coordinator.toml", {}),
        ("protocol.key", {}),
    ],
)
def test_only_the_regular_file_that_was_announced_is_in_its_place(name, fields):
    with pytest.raises(BackupError, match="something else"):
        read(with_member(name, **fields))


def test_a_member_may_not_be_longer_than_announced():
    with pytest.raises(BackupError, match="not as long"):
        read(with_member("coordinator.toml", bytes(10_000)))


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "pki/../../x",
        "pki/.hidden",
        "pki/a/b/c/d",
        "adapters/aa/short",
        "scratch/x",
        "",
        "pki/a\nb",
        "coordinator.toml/../x",
        "manifest.json",
    ],
)
def test_a_manifest_names_only_files_of_a_data_directory(name):
    with pytest.raises(BackupError, match="does not belong"):
        Manifest.decode(replace(manifest(), files=(member(name, b"x"),)).encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("files"),
        lambda d: d.update(extra=1),
        lambda d: d.update(format="chorale-backup/2"),
        lambda d: d.update(files={}),
        lambda d: d.update(files=[1]),
        lambda d: d["files"][0].update(size_bytes=-1),
        lambda d: d["files"][0].update(size_bytes=1 << 50),
        lambda d: d["files"][0].update(size_bytes=True),
        lambda d: d["files"][0].update(size_bytes=1.0),
        lambda d: d["files"][0].update(sha256="A" * 64),
        lambda d: d["files"].append(d["files"][0]),
        lambda d: d.update(blobs=["x"]),
        lambda d: d.update(taken_at="x" * 1000),
        lambda d: d.update(taken_at=None),
        lambda d: d.update(audit_index="0"),
        lambda d: d.update(audit_index=-1),
    ],
)
def test_a_manifest_is_typed_and_bounded(change):
    document = json.loads(manifest().encode())
    change(document)
    with pytest.raises(BackupError):
        Manifest.decode(json.dumps(document).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_a_document_that_is_no_manifest_is_refused(content):
    with pytest.raises(BackupError):
        Manifest.decode(content)


def test_a_manifest_is_bounded_before_it_is_read(monkeypatch):
    monkeypatch.setattr(backup_file, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(BackupError, match="too long"):
        read(written())
    monkeypatch.setattr(backup_file, "MAX_FILES", 3)
    with pytest.raises(BackupError, match="too much"):
        Manifest.decode(manifest().encode())


def test_what_changes_while_it_is_written_makes_no_backup():
    altered = {**CONTENTS, "protocol.key": b"yek"}
    for contents in (altered, {**CONTENTS, "protocol.key": b"longer"}):
        with pytest.raises(BackupError, match=r"protocol\.key"):
            write_backup(io.BytesIO(), manifest(), contents, at_unix_s=0)


# Restoring ----------------------------------------------------------------------------------------


def test_a_directory_in_use_is_never_touched(tmp_path):
    used = tmp_path / "used"
    used.mkdir()
    (used / "file").write_text("mine")
    (tmp_path / "link").symlink_to(used)
    for target, reason in ((used, "not empty"), (tmp_path / "link", "no directory"),
                           (used / "file", "no directory")):  # fmt: skip
        with pytest.raises(BackupError, match=reason):
            restore(io.BytesIO(written()), target)
    assert (used / "file").read_text() == "mine"
    assert [path.name for path in used.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"", "no backup"),
        (lambda: bytes(4096), "no backup"),
        (lambda: written({"coordinator.toml": b"x"}), "lacks"),
        (lambda: written(blobs=("ab" * 32,)), "adapters that it names"),
        (lambda: written(blobs=(X,))[:100_000], "cut"),
        (lambda: written(blobs=(X,))[:-600] + b"x" * 600, "goes on behind"),
        (lambda: written(blobs=(X,)).replace(b"host_names", b"host_nameS"), "was altered"),
    ],
)
def test_a_refused_file_leaves_nothing(tmp_path, make, reason):
    target = tmp_path / "new"
    with pytest.raises(BackupError, match=reason):
        restore(io.BytesIO(make()), target)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_restoration_left_goes_with_the_next_one(tmp_path):
    left = tmp_path / ".new.restoring"
    (left / "pki").mkdir(parents=True)
    (left / "pki" / "ca.key").write_text("a key")
    (left / "link").symlink_to(tmp_path)
    with pytest.raises(BackupError, match="no backup"):
        restore(io.BytesIO(b""), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_restoration_that_runs_is_left_alone(tmp_path):
    running = tmp_path / ".new.restoring"
    running.mkdir()
    (running / "file").write_text("its own")
    descriptor = os.open(running, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(BackupError, match="another restoration"):
            restore(io.BytesIO(written()), tmp_path / "new")
    finally:
        os.close(descriptor)
    assert (running / "file").read_text() == "its own"


def test_a_backup_larger_than_the_disk_is_refused_before_it_is_unpacked(tmp_path):
    document = manifest(
        files=(Member(name="coordinator.db", size_bytes=1 << 40, sha256="0" * 64),)
    ).encode()
    info = tarfile.TarInfo("manifest.json")
    info.size = len(document)
    content = info.tobuf(tarfile.GNU_FORMAT) + document + bytes(-len(document) % 512)
    with pytest.raises(BackupError, match="disk has fewer"):
        restore(io.BytesIO(content), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_every_place_of_the_data_directory_is_in_a_backup_or_known_not_to_be():
    """Whoever adds one decides: what is forgotten here is lost with the machine."""
    backed_up = {"config", "pki", "admin", "protocol_key", "root_public_key", "audit"}
    below_pki = {"trusted_cas"}
    left_out = {"adapters_cache", "scratch"}
    places = {name for name, value in vars(DataPaths).items() if isinstance(value, property)}
    assert places == backed_up | below_pki | left_out
