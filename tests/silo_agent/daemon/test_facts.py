"""The daemon's side of published facts: what leaves, when, and what no failure of it may cost.

A failure: a fact that the policy does not list, one that tells of data or of when a training was
charged, a publication in the middle of an attempt, or a round that ends by one.
"""

import sys
import threading
from itertools import count
from types import SimpleNamespace

import pytest

from dp.ledger.ledger import Ledger
from federation.errors import FactsError
from federation.membership.facts import FACTS, Availability, BudgetLeft, FreeGpu, SiloFacts
from secagg.suite import verification_key
from silo_agent.books.departure import Departure, Leaving
from silo_agent.books.facts import FACTS_FILE, OperatorsWord
from silo_agent.daemon.facts import AGAIN_S, APART_S, EVERY_S, FactsDesk
from silo_agent.errors import NotServedError, TransportError
from silo_agent.line.instruction import Idle, RoundClosed
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.document import Policy
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.silo_agent.bench import Bench, counted

ME = "silo-000"
NOW = 1_800_000_000
LISTED = f"[facts]\npublish = [{', '.join(repr(name) for name in FACTS)}]\n"
HOURS = '[schedule]\nhours_utc = "07:30-08:30"\n'
CAPS = "[privacy]\nepsilon_caps = { silo = 8.0 }\n"


class Silo:
    """One data directory's desk, and everything that it sends."""

    def __init__(self, directory, text=LISTED):
        self.directory = directory
        self.federation, self.silo_id, self.signing_key = "oncology", ME, signing_key(ME)
        self.now_s, self.wall_s = 100.0, float(NOW)
        self.sent, self.error = [], None
        self.metrics = SiloMetrics()
        self.spent = {"silo": 0.0}
        self.desk = FactsDesk(
            data_dir=directory,
            identity=self,
            policy=Policy.parse(text.encode()),
            ledger_of=lambda: self,
            coordinator=self,
            metrics=self.metrics,
            clock=lambda: self.wall_s,
            monotonic=lambda: self.now_s,
        )

    # A ledger, a coordinator.
    caps = {"silo": 8.0}  # noqa: RUF012

    def spent_epsilons(self):
        return dict(self.spent)

    def publish_facts(self, signed):
        self.sent.append(signed)
        if self.error is not None:
            raise self.error

    def poll(self, after_s=0.0, *, attempt_open=False):
        """One poll; the facts that left with it."""
        self.now_s += after_s
        self.wall_s += after_s
        before = len(self.sent)
        self.desk.publish(attempt_open=attempt_open)
        assert len(self.sent) <= before + 1
        return self.sent[-1].facts if len(self.sent) > before else None

    def errors(self, kind):
        return self.metrics.registry.get_sample_value("chorale_silo_errors_total", {"kind": kind})


@pytest.fixture
def silo(tmp_path):
    return Silo(tmp_path)


def test_a_silo_whose_policy_lists_nothing_says_nothing(tmp_path):
    one = Silo(tmp_path, HOURS + CAPS)
    OperatorsWord(tmp_path).say(queue=3, now_unix_s=NOW, for_s=3600)
    one.desk.take_budget()
    for _ in range(50):
        assert one.poll(EVERY_S) is None


def test_what_leaves_is_what_the_policy_lists_signed_by_this_silo(tmp_path):
    one = Silo(tmp_path, f'{HOURS}{CAPS}[facts]\npublish = ["budget_left", "queue"]')
    OperatorsWord(tmp_path).say(queue=3, free_gpu=FreeGpu.ALL, now_unix_s=NOW, for_s=3600)
    one.desk.take_budget()
    assert one.poll() == SiloFacts(queue=3, budget_left=BudgetLeft.OVER_THREE_QUARTERS)
    (signed,) = one.sent
    assert (signed.silo_id, signed.federation, signed.issued_unix_s) == (ME, "oncology", NOW)
    signed.verify(verification_key(signing_key(ME)))
    with pytest.raises(FactsError):
        signed.verify(verification_key(signing_key("silo-001")))


def test_it_says_so_at_the_start_at_a_change_and_every_five_minutes(silo):
    assert silo.poll() == SiloFacts(availability=Availability.UP)
    assert [silo.poll(8.0) for _ in range(37)] == [None] * 37
    assert silo.poll(8.0) == SiloFacts(availability=Availability.UP)
    OperatorsWord(silo.directory).say(queue=2, now_unix_s=silo.wall_s, for_s=60)
    # A change is told soon, and not sooner than a coordinator takes it.
    assert silo.poll(8.0) is None
    assert silo.poll(APART_S - 8.0) == SiloFacts(availability=Availability.UP, queue=2)
    assert silo.poll(60.0) == SiloFacts(availability=Availability.UP)
    Departure(silo.directory).set(Leaving(drain=True, by="ana", at_unix_s=NOW))
    assert silo.poll(20.0) == SiloFacts(availability=Availability.DOWN)
    issued = [signed.issued_unix_s for signed in silo.sent]
    assert all(later - earlier >= APART_S for earlier, later in zip(issued, issued[1:]))  # noqa: B905, RUF007


def test_nothing_is_published_while_an_attempt_is_open(silo):
    assert silo.poll(attempt_open=True) is None
    silo.poll()
    for _ in range(200):
        assert silo.poll(8.0, attempt_open=True) is None
    assert silo.poll() is not None


# What may go wrong --------------------------------------------------------------------------------


def test_a_coordinator_that_is_away_or_refuses_is_asked_again_and_costs_no_round(silo, capsys):
    for error in (
        TransportError("UNAVAILABLE: no detail"),
        TransportError("facts_stale", reason="facts_stale", refused=True),
        RuntimeError("a defect"),
    ):
        silo.error = error
        silo.poll(AGAIN_S)
        assert silo.errors(type(error).__name__) or silo.errors("other")
        assert silo.poll(AGAIN_S - 1.0) is None
    assert capsys.readouterr().out.count("facts_not_published") == 3
    silo.error = None
    assert silo.poll(AGAIN_S) is not None


def test_an_earlier_coordinator_is_spoken_of_once(silo, capsys):
    silo.error = NotServedError("of an earlier version")
    for _ in range(5):
        silo.poll(AGAIN_S)
    assert len(silo.sent) == 5
    assert capsys.readouterr().out.count("facts_not_published") == 1


def test_a_damaged_word_of_the_operator_holds_everything_back(silo, capsys):
    (silo.directory / FACTS_FILE).write_text("{")
    assert silo.poll() is None
    assert "facts_not_published" in capsys.readouterr().out
    assert silo.errors("LocalStoreError") == 1.0
    OperatorsWord(silo.directory).clear()
    assert silo.poll(AGAIN_S) is not None


def test_a_round_goes_on_whatever_becomes_of_its_facts(tmp_path):
    """The real loop: a defect is met before the attempt, which is opened and stays open."""
    bench = Bench(tmp_path)
    silo = Silo(tmp_path)
    silo.error, silo.desk._monotonic = RuntimeError("a defect"), count(0, 1000).__next__
    bench.daemon.facts = silo.desk
    bench.serve(Idle(), bench.one.signed)
    assert len(silo.sent) == 1
    assert bench.daemon.attempt_open
    assert counted(bench, "errors", kind="TransportError") == 0.0


# Nothing of it is data ----------------------------------------------------------------------------


def test_when_a_training_is_charged_does_not_show(tmp_path):
    """It is charged when exploring is over, which is data: an adopted record may show it alone."""
    silo = Silo(tmp_path, LISTED + CAPS)
    silo.desk.take_budget()
    first = silo.poll()
    assert first.budget_left is BudgetLeft.OVER_THREE_QUARTERS
    silo.spent = {"silo": 7.0}
    for _ in range(10):
        said = silo.poll(EVERY_S)
        assert said == first
    silo.desk.take_budget()
    assert silo.poll(EVERY_S).budget_left is BudgetLeft.UNDER_QUARTER


@pytest.mark.parametrize("payload", [Idle(), RoundClosed(record=None)], ids=["idle", "closed"])
def test_no_word_of_the_coordinator_has_the_ledger_looked_at(tmp_path, payload, monkeypatch):
    """Only the start does, and the adoption of a record, which binds the coordinator."""
    bench, looked = Bench(tmp_path), []
    bench.daemon.facts = SimpleNamespace(
        take_budget=lambda: looked.append("ledger"), publish=lambda **_: None
    )
    # A record of a plan that this site does not allow: nothing is followed.
    monkeypatch.setattr(bench.daemon, "_close_round", lambda _closed: False)
    bench.serve(*[payload] * 5)
    assert looked == ["ledger"]
    bench.daemon.audit = SimpleNamespace(adopting=lambda _record: None)
    bench.daemon._adopting(None)
    assert looked == ["ledger"] * 2


def test_a_ledger_that_cannot_be_read_costs_the_fact_alone(tmp_path, capsys):
    silo = Silo(tmp_path, LISTED + CAPS)
    silo.spent = None
    silo.desk.take_budget()
    assert "facts_not_published" in capsys.readouterr().out
    assert silo.poll() == SiloFacts(availability=Availability.UP)


def lived(directory, *, tasks, reward):
    """A silo that explored and learned; its ledger is what plans charged."""
    directory.mkdir()
    one = Silo(directory, LISTED + HOURS + CAPS)
    (directory / "evolve").mkdir()
    (directory / "experts.sqlite").write_bytes(bytes(tasks))
    (directory / "evolve" / "memory.jsonl").write_text(f'{{"reward": {reward}}}\n' * tasks)
    (directory / "rounds.jsonl").write_text(f'{{"episodes": {tasks}, "reward": {reward}}}\n')
    (directory / "evaluation.jsonl").write_text(f'{{"success": {reward}}}\n' * tasks)
    one.metrics.observe_evolution(
        episodes={"craft": tasks},
        successes={"craft": int(tasks * reward)},
        figures={"last_loss": 1.0 - reward},
    )
    one.spent = {"silo": 3.0}
    OperatorsWord(directory).say(queue=1, free_gpu=FreeGpu.SOME, now_unix_s=NOW, for_s=3600)
    one.desk.take_budget()
    return one


def test_silos_that_differ_in_their_data_alone_say_the_same(tmp_path):
    few = lived(tmp_path / "few", tasks=1, reward=0.0)
    many = lived(tmp_path / "many", tasks=5000, reward=1.0)
    said = [[one.poll(after_s) for after_s in (0.0, 8.0, 300.0, 1500.0)] for one in (few, many)]
    assert said[0] == said[1]
    assert said[0][0] == SiloFacts(
        availability=Availability.UP,
        queue=1,
        free_gpu=FreeGpu.SOME,
        budget_left=BudgetLeft.UNDER_THREE_QUARTERS,
        earliest_start_unix_s=NOW - 1800,
    )
    # The very bytes that are signed, too.
    assert [one.signed_bytes() for one in few.sent] == [one.signed_bytes() for one in many.sent]


def test_publishing_opens_nothing_but_the_operators_words(tmp_path):
    one = lived(tmp_path / "one", tasks=9, reward=0.5)
    watching, opened = threading.Event(), []

    def watch(event, arguments):
        if watching.is_set() and event in {"open", "sqlite3.connect", "os.listdir", "os.scandir"}:
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    watching.set()
    try:
        assert one.poll() is not None
    finally:
        watching.clear()
    assert {name.rsplit("/", 1)[-1] for name in opened} <= {"leaving.json", FACTS_FILE}


def test_the_bin_is_of_the_ledgers_own_figure(tmp_path):
    """A real ledger, before anything was charged."""
    with Ledger.open(tmp_path / "privacy.ledger", delta=1e-5, caps={"silo": 8.0}) as ledger:
        one = Silo(tmp_path, LISTED + CAPS)
        one.desk._ledger_of = lambda: ledger
        one.desk.take_budget()
        assert one.poll().budget_left is BudgetLeft.OVER_THREE_QUARTERS
