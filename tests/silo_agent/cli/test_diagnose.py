"""``chorale-silo diagnose``: one silo's own part, which stays where it is."""

import json
import socket
import stat

import pytest

from ops.cli.envelope import Exit
from silo_agent.books.leave import wipe
from silo_agent.books.ledger import Ledger
from silo_agent.local_work.diagnosis import DIRECTORY
from tests.kit.paths import ROOT
from tests.kit.silo_agent.command_line import call

BASE = ROOT / "lab" / "base_model"
SMALL = ("--steps", "1", "--explored", "16", "--episodes", "12", "--max-new-tokens", "6")


@pytest.fixture
def diagnose(monkeypatch, capsys, tmp_path):
    """Configure a silo and call the command; nothing may be sent."""

    def nobody(*_arguments, **_more):
        raise AssertionError("something was sent")

    monkeypatch.setattr(socket.socket, "connect", nobody)

    def run(environments, *options, base=True):
        model = f'base_model = "{BASE}"\n' if base else ""
        (tmp_path / "silo.toml").write_text(f"{model}environments = {environments}\n")
        code, out, err = call(
            monkeypatch, capsys, "diagnose", "--data", str(tmp_path), "--format", "json", *options
        )
        return code, json.loads(out), err

    return run


def test_an_environment_that_looks_like_the_reference_and_is_another(diagnose, tmp_path):
    code, answer, _ = diagnose('["bandit-swapped"]', "--reference", "bandit", *SMALL)
    assert code == Exit.OK, answer
    (one,) = answer["data"]["environments"]
    assert (one["t1"], one["t3"]) == (False, False)
    assert one["predicted"] in "CD"
    directory = tmp_path / DIRECTORY
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    # Only the reports are left, and nobody else can read them.
    assert {path.name for path in directory.iterdir()} == {
        "bandit-swapped.md", "bandit-swapped.json",
    }  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    text = (directory / "bandit-swapped.md").read_text()
    assert "in the silo | through the sum | cannot be known" in text
    assert json.loads((directory / "bandit-swapped.json").read_text())["floor"] is None
    assert {path.name for path in tmp_path.iterdir()} == {DIRECTORY, "silo.toml"}
    assert DIRECTORY in wipe(tmp_path, proofs=False).deleted
    assert not directory.exists()


def test_with_its_line_it_shows_also_while_a_daemon_holds_the_ledger(diagnose, tmp_path):
    line = '[{ environment = "bandit-swapped", variant = { kind = "none", descriptor = true } }]'
    with Ledger.open(tmp_path / "privacy.ledger", delta=1e-5, caps={}):
        before = (tmp_path / "privacy.ledger").read_bytes()
        _, answer, _ = diagnose(line, "--reference", "bandit", *SMALL)
        assert (tmp_path / "privacy.ledger").read_bytes() == before
    (one,) = answer["data"]["environments"]
    assert (one["t1"], one["t3"], one["predicted"]) == (False, True, "B")


def test_the_reference_itself_is_not_compared_with_itself(diagnose, tmp_path):
    same = '["craft", { environment = "market", variant = { kind = "field-subset", choice = 0 } }]'
    code, answer, _ = diagnose(same)
    assert code == Exit.OK
    assert [one["report"] for one in answer["data"]["environments"]] == [None, None]
    assert all("reference itself" in one["why_not"] for one in answer["data"]["environments"])
    assert not (tmp_path / DIRECTORY).exists()


@pytest.mark.long
def test_a_variant_is_compared_with_the_environment_as_everybody_has_it(diagnose, tmp_path):
    varied = (
        '[{ environment = "market", variant = { kind = "rank-wrapper", index = 1, choice = 2 } }]'
    )
    code, answer, _ = diagnose(varied, *SMALL)
    assert code == Exit.OK, answer
    (one,) = answer["data"]["environments"]
    found = json.loads((tmp_path / DIRECTORY / "market.json").read_text())
    assert found["worlds"] == ["this silo", "the reference"]
    # Results in another order are answers of another kernel.
    assert one["t1"] is False
    assert max(pair["distance"]["count"] for pair in found["t1"]["pairs"]) > 0
    assert found["t1"]["distance_floor"]["count"] == 0


@pytest.mark.parametrize(
    ("environments", "options", "base", "said"),
    [
        ("[]", (), True, "explores nothing"),
        ('["craft"]', (), False, "set base_model"),
        ('["craft"]', ("--reference", "crafts"), True, "there is no environment 'crafts'"),
    ],
)
def test_what_cannot_be_compared_is_said(diagnose, environments, options, base, said):
    code, answer, _ = diagnose(environments, *options, base=base)
    assert code == Exit.ARGUMENTS
    assert said in answer["message"]


def test_deletion_of_what_was_played_takes_the_reports(diagnose, tmp_path, monkeypatch, capsys):
    diagnose('["bandit-swapped"]', "--reference", "bandit", *SMALL)
    code, out, _ = call(
        monkeypatch, capsys, "buffer", "delete", "--subject", "zoe", "--data", str(tmp_path),
        "--format", "json",
    )  # fmt: skip
    assert code == Exit.OK
    assert json.loads(out)["data"]["diagnoses"] == 1
    assert not (tmp_path / DIRECTORY).exists()
