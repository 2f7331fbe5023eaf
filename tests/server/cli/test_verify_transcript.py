"""``chorale verify-transcript``: a line for each check, the contract's envelope and exit codes."""

import json

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from federation.transcript.file import encode_transcript
from server.cli.main import app
from tests.kit.federation.transcripts import changed_sum, cut, released
from tests.kit.secagg.secagg_samples import ROOT_KEY, signing_key

GOOD, TOTAL = released(4, 1, {"masked_input": ["silo-002"]})


def pem(key):
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "root.pub").write_bytes(pem(ROOT_KEY))
    (tmp_path / "good.json").write_bytes(encode_transcript(GOOD))
    (tmp_path / "sum").write_bytes(TOTAL)
    return tmp_path


def call(files, *arguments, root="root.pub", transcript="good.json"):
    """Both ways: the exit code, the envelope, and what people see on stdout."""
    words = ("verify-transcript", str(files / transcript), "--root-key", str(files / root))
    done = CliRunner().invoke(app, [*words, *arguments, "--format", "json"])
    shown = CliRunner().invoke(app, [*words, *arguments])
    assert shown.exit_code == done.exit_code
    return done.exit_code, json.loads(done.stdout), shown.stdout


def test_a_good_transcript_prints_a_line_for_each_check(files):
    code, envelope, prose = call(files, "--sum", str(files / "sum"))
    assert (code, envelope["status"]) == (0, "ok")
    passed = envelope["data"]["passed"]
    assert [line.split()[1] for line in prose.splitlines() if line.startswith("ok ")] == passed
    assert (passed[0], passed[-1]) == ("roster", "sum")
    assert envelope["data"]["survivors"] == ["silo-000", "silo-001", "silo-003"]
    _, envelope, prose = call(files)
    assert envelope["data"]["passed"] == passed[:-1]
    assert "the sum was not given" in prose


def test_an_aborted_attempt_is_said_to_be_one(files):
    (files / "aborted.json").write_bytes(encode_transcript(cut(GOOD, 2)))
    code, envelope, _ = call(files, transcript="aborted.json")
    assert (code, envelope["data"]["outcome"]) == (0, "aborted")
    code, envelope, _ = call(files, "--sum", str(files / "sum"), transcript="aborted.json")
    assert (code, envelope["error_code"]) == (4, "transcript_sum")


def test_the_failed_check_is_the_error_code(files):
    (files / "other.pub").write_bytes(pem(signing_key("mallory")))
    (files / "wrong").write_bytes(changed_sum(TOTAL))
    (files / "empty").write_bytes(b"")
    (files / "bad.json").write_text("{")
    document = json.loads((files / "good.json").read_text())
    document["agreements"].pop()
    (files / "few.json").write_text(json.dumps(document))
    for arguments, options, expected in (
        ((), {"root": "other.pub"}, "transcript_roster"),
        (("--sum", str(files / "wrong")), {}, "transcript_sum"),
        (("--sum", str(files / "empty")), {}, "transcript_sum"),
        ((), {"transcript": "bad.json"}, "transcript_format"),
        ((), {"transcript": "few.json"}, "transcript_agreements"),
    ):
        code, envelope, prose = call(files, *arguments, **options)
        assert (code, envelope["error_code"]) == (4, expected)
        assert envelope["message"].startswith(expected.removeprefix("transcript_") + ": ")
        assert f"FAILED  {expected.removeprefix('transcript_')}" in prose


def test_files_that_are_not_there_are_the_callers_mistake(files):
    for options in ({"transcript": "none.json"}, {"root": "none.pub"}):
        code, envelope, _ = call(files, **options)
        assert (code, envelope["status"]) == (4, "error")
    code, envelope, _ = call(files, "--sum", str(files / "none"))
    assert (code, envelope["error_code"]) == (4, "file")
