"""chorale-silo budget: what the ledger says for each kind of unit, and what it refuses to say."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dp.accounting.charge import attempt_charges
from dp.accounting.compose import Epsilon
from dp.config import Mode, PrivacySpec, RecordSpec
from dp.errors import LedgerCorruptError, LedgerFormatError, LedgerRolledBackError
from dp.ledger.journal import Journal
from dp.ledger.ledger import Identity, Ledger, LedgerEntry
from ops.cli.envelope import Exit
from silo_agent.books.budget import read_budget
from silo_agent.books.ledger import LEDGER_FILE
from silo_agent.books.local_store import LocalStore
from silo_agent.cli.budget_table import budget_lines
from silo_agent.cli.main import main
from silo_agent.doctor.site import judge_ledger
from silo_agent.errors import LocalStoreError
from silo_agent.policy.document import Policy
from tests.kit.silo_agent.policy_samples import POLICY, edited

DELTA = 1e-5
CAPS = {"silo": 50.0, "task": 40.0}
DIGEST = bytes(32)


def spec(mode: Mode, *, silo_noise: float = 0.0, unit: str = "task") -> PrivacySpec:
    noise = 0.0 if mode is Mode.NONE else 5.0
    record = None
    if mode in (Mode.RECORD_LOCAL, Mode.RECORD_DISTRIBUTED):
        record = RecordSpec(
            sampling_rate=0.25,
            expected_units=16,
            steps_per_round=3,
            delta_clip_l2=1.0 if mode is Mode.RECORD_LOCAL else None,
            silo_noise_multiplier=silo_noise,
        )
    return PrivacySpec(
        mode=mode,
        unit=unit,
        clip_l2=1.0,
        noise_multiplier=noise,
        metrics_noise_multiplier=noise,
        delta=DELTA,
        epsilon_cap=8.0,
        record=record,
    )


def entry(of: PrivacySpec, round_number: int, *, run="run-1", step=0, attempt=1) -> LedgerEntry:
    return LedgerEntry(
        run=run,
        round=round_number,
        attempt=attempt,
        step=step,
        part=0,
        mode=of.mode,
        charges=attempt_charges(of, step=step),
        dimension=4,
        descriptor_sha256=DIGEST,
    )


def train(ledger: Ledger, of: PrivacySpec, round_number: int, run="run-1") -> None:
    ledger.reserve_training(run=run, round=round_number, spec=of, adapter_sha256=DIGEST)


def opened(directory: Path, caps=CAPS) -> Ledger:
    return Ledger.open(directory / LEDGER_FILE, delta=DELTA, caps=caps)


def unit_of(budget, unit):
    (row,) = [row for row in budget.units if row.unit == unit]
    return row


def call(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["chorale-silo", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def shown(epsilon, *, partial=0, unprotected=0):
    """The JSON form of a figure."""
    return {
        "epsilon": epsilon,
        "partial_releases": partial,
        "unprotected_releases": unprotected,
        "adjacency": "zero-out",
    }


@pytest.fixture
def silo(tmp_path: Path) -> Path:
    (tmp_path / "silo.toml").write_text("environments = []")
    (tmp_path / "policy.toml").write_text(edited(POLICY))
    return tmp_path


def test_nothing_was_charged_yet(tmp_path):
    found = read_budget(tmp_path, delta=DELTA, caps=CAPS)
    assert [(row.unit, row.epsilon_spent, row.epsilon_left) for row in found.units] == [
        ("silo", Epsilon(0.0), 50.0),
        ("task", Epsilon(0.0), 40.0),
    ]
    assert (found.runs, found.unprotected, found.ledger_seq) == ((), 0, None)
    assert not (tmp_path / LEDGER_FILE).exists()
    nothing = read_budget(tmp_path, delta=DELTA, caps={})
    assert nothing.units == ()
    assert any("allows nothing" in line for line in budget_lines(nothing))


def test_it_works_while_the_daemon_holds_the_ledger(silo: Path, monkeypatch, capsys):
    of = spec(Mode.SILO)
    with opened(silo) as held:
        held.reserve(entry(of, 1))
        held.reserve(entry(of, 2))
        held.mark_agreed(Identity("run-1", 2, 0, 0, 1))
        held.reserve(entry(spec(Mode.NONE), 1, run="run-2"))
        before = (silo / LEDGER_FILE).read_bytes()
        code, out, _ = call(monkeypatch, capsys, "budget", "--data", str(silo), "--format", "json")
        data = json.loads(out)["data"]
        spent = held.spent_epsilons()["silo"]
        assert code == Exit.OK
        assert data["units"][0] == {
            "unit": "silo",
            "epsilon_spent": shown(spent, unprotected=1),
            "epsilon_reserved": 0.0,
            "epsilon_left": 50.0 - spent,
            "epsilon_cap": 50.0,
        }
        assert (data["ledger_seq"], data["ledger_sha256"]) == (4, held.head()[1].hex())
        assert (silo / LEDGER_FILE).read_bytes() == before
        # The daemon's lock and its writing are not disturbed.
        held.reserve(entry(of, 3))
    assert data["unprotected"] == 1
    first, second = data["runs"]
    assert (first["run"], first["attempts"], first["unprotected"]) == ("run-1", 2, 0)
    assert first["epsilons"]["silo"] == shown(pytest.approx(spent, rel=1e-12))
    # What it tells of the silo it tells of its tasks and users, at up to two clips.
    assert first["epsilons"]["task"] == first["epsilons"]["user"]
    assert first["epsilons"]["task"]["epsilon"] > 1.5 * spent
    assert [row["unit"] for row in data["units"]] == ["silo", "task", "user"]
    assert second == {
        "run": "run-2",
        "epsilons": {},
        "attempts": 1,
        "trainings": 0,
        "trainings_beyond": 0,
        "unprotected": 1,
    }


def test_a_training_is_reserved_until_its_round_is_uploaded(tmp_path):
    of = spec(Mode.RECORD_LOCAL)
    with opened(tmp_path) as ledger:
        train(ledger, of, 1)
        first = unit_of(read_budget(tmp_path, delta=DELTA, caps=CAPS), "task")
        assert first.epsilon_reserved == first.epsilon_spent.epsilon > 0.0
        ledger.reserve(entry(of, 1))
        second = unit_of(read_budget(tmp_path, delta=DELTA, caps=CAPS), "task")
        assert second.epsilon_spent.epsilon > first.epsilon_spent.epsilon
        assert second.epsilon_reserved == 0.0
        train(ledger, of, 2)
        found = read_budget(tmp_path, delta=DELTA, caps=CAPS)
        third = unit_of(found, "task")
        assert third.epsilon_spent == ledger.epsilons()["task"]
    # What is not reserved is what was spent before the second training.
    released = third.epsilon_spent.epsilon - third.epsilon_reserved
    assert released == pytest.approx(second.epsilon_spent.epsilon, rel=1e-12)
    assert third.epsilon_left == 40.0 - third.epsilon_spent.epsilon
    assert (found.runs[0].attempts, found.runs[0].trainings) == (1, 2)
    # The silo was charged nothing, and one release is not protected for it.
    assert unit_of(found, "silo").epsilon_spent == Epsilon(0.0, partial_releases=1)
    assert set(found.runs[0].epsilons) == {"task"}


def test_a_training_begun_twice_was_charged_twice(tmp_path):
    of = spec(Mode.RECORD_LOCAL)
    with opened(tmp_path) as ledger:
        train(ledger, of, 1)
        once = read_budget(tmp_path, delta=DELTA, caps=CAPS)
        train(ledger, of, 1)
        twice = read_budget(tmp_path, delta=DELTA, caps=CAPS)
    assert unit_of(twice, "task").epsilon_reserved > unit_of(once, "task").epsilon_reserved
    assert (twice.runs[0].trainings, twice.runs[0].trainings_beyond) == (2, 2)


def test_what_was_trained_for_nothing_is_said_in_words(tmp_path):
    of = spec(Mode.RECORD_LOCAL)
    with opened(tmp_path) as ledger:
        for _ in range(3):
            train(ledger, of, 1)
        ledger.reserve(entry(of, 1))
        train(ledger, of, 2)
        ledger.reserve(entry(of, 2))
        found = read_budget(tmp_path, delta=DELTA, caps=CAPS)
        (said,) = [line for line in budget_lines(found) if "beyond the rounds" in line]
        assert said.startswith("  2 local training(s) charged beyond the rounds that released")
        assert "is charged again" in said
        # A later attempt of a round that was released already is no training.
        ledger.reserve(entry(of, 2, attempt=2))
        assert read_budget(tmp_path, delta=DELTA, caps=CAPS).runs[0].trainings_beyond == 2


def test_noise_for_the_silo_on_top_is_charged_to_both_kinds(tmp_path):
    of = spec(Mode.RECORD_LOCAL, silo_noise=5.0)
    with opened(tmp_path) as ledger:
        train(ledger, of, 1)
        ledger.reserve(entry(of, 1))
        found = read_budget(tmp_path, delta=DELTA, caps=CAPS)
        assert set(found.runs[0].epsilons) == {"silo", "task", "user"}
        for row in found.units:
            assert row.epsilon_spent == ledger.epsilons()[row.unit]
            assert row.epsilon_spent.epsilon > 0.0
            assert row.epsilon_reserved == 0.0


def test_a_kind_that_was_charged_is_shown_without_a_cap_as_well(tmp_path):
    of = spec(Mode.RECORD_DISTRIBUTED, unit="user")
    with opened(tmp_path, caps={"user": 9.0}) as ledger:
        for step in range(3):
            ledger.reserve(entry(of, 1, step=step))
    user = unit_of(read_budget(tmp_path, delta=DELTA, caps={"task": 9.0}), "user")
    assert user.epsilon_spent.epsilon > 0.0
    assert (user.epsilon_cap, user.epsilon_left) == (0.0, 0.0)


def test_runs_are_not_additive(tmp_path):
    of = spec(Mode.SILO)
    with opened(tmp_path) as ledger:
        ledger.reserve(entry(of, 1))
        ledger.reserve(entry(of, 1, run="run-2"))
    found = read_budget(tmp_path, delta=DELTA, caps={"silo": 1.0})
    alone = sum(run.epsilons["silo"].epsilon for run in found.runs)
    assert alone > unit_of(found, "silo").epsilon_spent.epsilon > 1.0
    assert unit_of(found, "silo").epsilon_left == 0.0


def test_the_table_says_all_of_it(tmp_path):
    of = spec(Mode.RECORD_LOCAL)
    with opened(tmp_path) as ledger:
        train(ledger, of, 1)
        ledger.reserve(entry(spec(Mode.NONE), 1, run="run-2"))
        head = ledger.head()[1].hex()
    lines = budget_lines(read_budget(tmp_path, delta=DELTA, caps=CAPS))
    assert lines[0] == "epsilon at delta 1e-05, zero-out adjacency"
    assert lines[1].split() == ["unit", "reserved", "left", "cap", "spent"]
    for line, unit in zip(lines[2:5], ("silo", "task", "user"), strict=True):
        assert line.split()[0] == unit
        assert line.endswith(" and 1 release in mode none")
    assert lines[4].split()[1:4] == ["0", "-", "no"]
    text = "\n".join(lines)
    assert "run-1: epsilon alone task" in text
    assert "0 upload(s), 1 local training(s)" in text
    assert "run-2: epsilon alone none; charged for 1 upload(s), 1 without noise" in text
    assert "1 upload(s) in mode none, which no epsilon describes" in text
    assert head[:16] in lines[-1]


def test_the_doctor_names_cap_and_figure_where_a_ledger_is_above_one(tmp_path):
    of = spec(Mode.SILO)
    with opened(tmp_path) as ledger:
        ledger.reserve(entry(of, 1))
        found = ledger.epsilons()["task"]
    config = SimpleNamespace(data_dir=tmp_path)

    def judged(caps):
        policy = Policy.parse(f"[privacy]\nepsilon_caps = {{ {caps} }}".encode())
        return judge_ledger(config, policy)

    over = judged("silo = 50.0, task = 0.5")
    assert over.outcome == "warning"
    assert f"task stands at {found} (zero-out adjacency), its cap is 0.5" in over.found
    # What no cap names is in nobody's way.
    fine = judged("silo = 50.0")
    assert fine.outcome == "ok"
    assert "zero-out adjacency" in fine.found


def three_records(directory: Path) -> Path:
    of = spec(Mode.SILO)
    with opened(directory) as ledger:
        for number in (1, 2, 3):
            ledger.reserve(entry(of, number))
        LocalStore(directory).set_ledger_head(*ledger.head())
    return directory / LEDGER_FILE


def flip(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


DAMAGE = {
    "flipped": (flip, LedgerCorruptError, "damaged"),
    "torn-then-data": (lambda data: data + data[:20] + data[-400:], LedgerCorruptError, "torn|dam"),
    "cut": (lambda data: data[: len(data) // 2], LedgerRolledBackError, "was seen"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_ledger_that_cannot_be_trusted_shows_no_figure(silo, name, monkeypatch, capsys):
    change, error, text = DAMAGE[name]
    path = three_records(silo)
    damaged = change(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(error, match=text):
        read_budget(silo, delta=DELTA, caps=CAPS)
    code, out, err = call(monkeypatch, capsys, "budget", "--data", str(silo), "--format", "json")
    envelope = json.loads(out)
    assert code == Exit.ARGUMENTS
    assert envelope["error_code"] == error.reason.value
    assert envelope["hint"]
    assert "copy" in envelope["next_step"]
    assert "Traceback" not in err
    # It is evidence; nothing was repaired in place.
    assert path.read_bytes() == damaged


def test_a_record_that_is_being_written_is_not_counted(tmp_path):
    path = three_records(tmp_path)
    whole = read_budget(tmp_path, delta=DELTA, caps=CAPS)
    path.write_bytes(path.read_bytes() + b"\0\0")
    assert read_budget(tmp_path, delta=DELTA, caps=CAPS) == whole


def test_a_lost_ledger_is_not_an_empty_one(tmp_path):
    three_records(tmp_path).unlink()
    with pytest.raises(LocalStoreError, match="newest copy"):
        read_budget(tmp_path, delta=DELTA, caps=CAPS)


def test_a_ledger_of_another_format_is_refused_with_what_to_do(silo, monkeypatch, capsys):
    journal = Journal(silo / LEDGER_FILE)
    journal.load()
    journal.append({"kind": "genesis", "format": 1, "id": "00" * 16})
    journal.close()
    with pytest.raises(LedgerFormatError):
        read_budget(silo, delta=DELTA, caps=CAPS)
    code, out, _ = call(monkeypatch, capsys, "budget", "--data", str(silo), "--format", "json")
    assert code == Exit.ARGUMENTS
    envelope = json.loads(out)
    assert envelope["error_code"] == "ledger_format"
    assert "new data directory" in envelope["message"]
