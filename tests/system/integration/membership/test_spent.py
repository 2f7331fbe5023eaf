"""A silo leaves and its data set goes on elsewhere: real enrolment, real commands, real ledgers.

No figure may be lost on the way, and no file that is not the right one may cost anything: after a
refusal the invite still works and nothing was written.
"""

import json

import pytest

from dp.errors import BudgetExceededError
from ops.cli.envelope import Exit
from silo_agent.books.ledger import LEDGER_FILE, open_ledger
from silo_agent.books.local_store import LocalStore
from silo_agent.books.spent import SPENT_FILE
from silo_agent.config import SiloConfig
from silo_agent.identity.identity import Identity
from silo_agent.policy.document import Policy
from tests.kit.dp.ledgers import DELTA, entry, none_entry, opened
from tests.kit.silo_agent.command_line import call

pytestmark = pytest.mark.xdist_group("enrolment")


def policy(cap=9.0):
    return (
        f"[privacy]\ndelta = {DELTA}\nepsilon_caps = {{ silo = {cap} }}\n"
        "[limits]\nmax_attempts_per_day = 9\n"
    )


class Person:
    """Types commands at one machine."""

    def __init__(self, monkeypatch, capsys, coordinator):
        self._patch, self._capsys, self._coordinator = monkeypatch, capsys, coordinator

    def types(self, *arguments):
        code, out, _ = call(self._patch, self._capsys, *map(str, arguments), "--format", "json")
        return code, json.loads(out)

    def does(self, *arguments):
        code, answer = self.types(*arguments)
        assert code == Exit.OK, answer
        return answer["data"]

    def invited(self, silo_id):
        return self._coordinator.invite(silo_id)


@pytest.fixture
def person(monkeypatch, capsys, coordinator):
    return Person(monkeypatch, capsys, coordinator)


def charge(data, *entries):
    (data / "policy.toml").write_text(policy())
    with opened(data / LEDGER_FILE) as ledger:
        for one in entries:
            ledger.reserve(one)
        LocalStore(data).set_ledger_head(*ledger.head())
        return {kind: found for kind, found in ledger.spent_epsilons().items() if found}


def ledger_of(data):
    """As a daemon opens it."""
    config = SiloConfig.load(data)
    return open_ledger(config, Policy.load(config.policy_file), LocalStore(data))


def shown(person, data):
    return person.does("budget", "--data", data)


def test_what_was_spent_goes_on_in_a_new_directory_and_the_caps_count_it(person, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    assert person.does("join", person.invited("moving-a"), "--data", old)["spent_before"] == []
    spent = charge(old, entry(1), entry(2), none_entry(3))
    with opened(old / LEDGER_FILE) as ledger:
        ledger.mark_agreed(none_entry(3).identity, cohort=("moving-a", "staying-b", "staying-c"))
        LocalStore(old).set_ledger_head(*ledger.head())
    before = shown(person, old)
    assert before["carried"] == {}
    left = person.does("leave", "--wipe", "--wipe-ledger", "--yes", "--data", old)
    assert left["spent_file"] == str(old / SPENT_FILE)
    assert not (old / LEDGER_FILE).exists()
    assert not (old / "identity").exists()
    # Said again, it says the same.
    assert person.does("leave", "--wipe", "--yes", "--data", old)["spent_key"] == left["spent_key"]

    given = ("--spent", left["spent_file"], "--spent-key", left["spent_key"])
    joined = person.does("join", person.invited("moving-b"), "--data", new, *given)
    assert [row["silo_id"] for row in joined["spent_before"]] == ["moving-a"]
    (new / "policy.toml").write_text(policy())
    after = shown(person, new)
    assert after["unprotected"] == before["unprotected"] == 1
    assert {row["unit"]: row["epsilon_spent"] for row in after["units"]} == {
        row["unit"]: row["epsilon_spent"] for row in before["units"]
    }
    assert set(after["carried"]) >= set(spent)
    code, out, _ = call(person._patch, person._capsys, "budget", "--data", str(new))
    assert code == Exit.OK
    assert "carried from before: epsilon alone" in out
    for data in (old, new):
        (data / "policy.toml").write_text(policy(spent["silo"] * 1.001))
    # As many uploads fit under the cap where nothing was spent before, and not one more here.
    with ledger_of(new) as ledger, pytest.raises(BudgetExceededError):
        ledger.reserve(entry(1))
    with ledger_of(new) as ledger:
        # Nor is a sum without noise of anybody who was not in the last one.
        assert ledger.cohort == {"moving-a", "staying-b", "staying-c"}
    with ledger_of(old) as ledger:
        ledger.reserve(entry(1))
        ledger.reserve(entry(2))
    audited = (new / "audit.jsonl").read_text()
    assert joined["spent_before"][0]["ledger"] in audited


def test_a_file_that_is_not_the_right_one_costs_nothing(person, tmp_path):
    """Refused are: no fingerprint, another's, a cut file, one ledger twice. The invite stays."""
    old, new = tmp_path / "old", tmp_path / "new"
    person.does("join", person.invited("careful-a"), "--data", old)
    charge(old, entry(1))
    file, newer = tmp_path / "spent-1.json", tmp_path / "spent-2.json"
    cut = tmp_path / "cut.json"
    # Beside a daemon, which holds the ledger.
    with opened(old / LEDGER_FILE):
        key = person.does("budget", "export", file, "--data", old)["key_fingerprint"]
    assert key == person.does("status", "--data", old)["key_fingerprint"]
    charge(old, entry(2))
    person.does("budget", "export", newer, "--data", old)
    code, answer = person.types("budget", "export", newer, "--data", old)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "file_exists")
    # Not the default directory without a word.
    code, _, err = call(
        person._patch, person._capsys, "budget", "--data", str(old), "export", str(cut)
    )
    assert (code, cut.exists()) == (Exit.ARGUMENTS, False)
    assert "options go after `export`" in err
    cut.write_bytes(file.read_bytes()[:-100])

    invite = person.invited("careful-b")
    other = ":".join(["0000"] * 8)
    for given, error in (
        (("--spent", file), "spent_key"),
        (("--spent", file, "--spent-key", other), "spent_key"),
        (("--spent", file, "--spent-key", key, "--spent-key", other), "spent_key"),
        (("--spent-key", key), "spent_key"),
        (("--spent", cut, "--spent-key", key), "spent_file"),
        (("--spent", tmp_path / "absent", "--spent-key", key), "spent_file"),
        (("--spent", file, "--spent", newer, "--spent-key", key), "spent_file"),
    ):
        code, answer = person.types("join", invite, "--data", new, *given)
        assert (code, answer["error_code"]) == (Exit.ARGUMENTS, error), given
        assert not new.exists()
    code, answer = person.types("join", invite, "--data", new, "--spent", file)
    assert key in answer["message"]
    assert "invite can still be used" in answer["hint"]
    # The file of another silo of this machine is another key's.
    person.does("join", invite, "--data", new, "--spent", newer, "--spent-key", key.upper())
    # The ledger goes on; another opening is none for it.
    code, answer = person.types(
        "join", person.invited("careful-b"), "--data", new, "--spent", file, "--spent-key", key
    )
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "spent_file")
    assert "join without --spent" in answer["message"]


def test_an_emptied_directory_does_not_begin_at_nothing_unseen(person, tmp_path):
    data = tmp_path / "silo"
    person.does("join", person.invited("again-a"), "--data", data)
    code, out, _ = call(
        person._patch, person._capsys, "join", person.invited("again-a"), "--data", str(data)
    )
    assert "epsilon starts at 0" in out
    charge(data, entry(1))
    _, out, _ = call(
        person._patch, person._capsys, "join", person.invited("again-a"), "--data", str(data)
    )
    assert "epsilon starts at 0" not in out
    person.does("leave", "--wipe", "--wipe-ledger", "--yes", "--data", data)
    invite = person.invited("again-b")
    code, answer = person.types("join", invite, "--data", data)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "spent_not_given")
    assert not (data / "identity").exists()
    told = answer["next_step"].partition("add ")[2].partition(";")[0].split()
    person.does("join", invite, "--data", data, *told)
    assert shown(person, data)["carried"]


def test_no_identity_is_there_before_the_ledger_that_it_needs(person, tmp_path, monkeypatch):
    """A crash between the two costs the invite, and no charge is forgotten."""
    old, new = tmp_path / "old", tmp_path / "new"
    person.does("join", person.invited("crash-a"), "--data", old)
    charge(old, entry(1))
    left = person.does("leave", "--data", old)
    given = ("--spent", left["spent_file"], "--spent-key", left["spent_key"])

    def crash(*_):
        raise SystemExit(9)

    with monkeypatch.context() as patched:
        patched.setattr(Identity, "store", crash)
        call(
            monkeypatch, person._capsys, "join", person.invited("crash-b"), "--data", str(new),
            *given,
        )  # fmt: skip
    assert not (new / "identity").exists()
    assert (new / LEDGER_FILE).exists()
    # Again with the file: it is the same ledger. Without: it still holds what was spent.
    person.does("join", person.invited("crash-b"), "--data", new, *given)
    (new / "policy.toml").write_text(policy())
    assert shown(person, new)["carried"]
