"""No order of messages and no crash makes a silo release what it must not.

A state machine plays a malicious coordinator against silos with real sessions, ledgers and spools:
new and repeated descriptors, different key sets and survivor sets for different silos, replays,
messages of other attempts, and processes that die at any write, flush, rename or send, with or
without the power. After every step the auditor has seen everything that left a silo.

A failure: both kinds of share of one silo in one ctx, the secret of a pair of survivors, two key
bundles, masked vectors or survivor signatures where one is allowed, keys or survivors of a later
attempt after survivors were signed, or a byte that left before its record was on the disk. Not a
failure: a silo that drops out.

The controls are silos that break one rule each; the machine must find every one of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dp.ledger.receipt import ISSUER, Receipt
from secagg.client import ConsistencyCheck, Unmask
from secagg.messages import Survivors
from silo_agent.attempt.session import Session
from tests.adversary.simulation.crash_federation import CLIP, DIMENSION, GRID, Federation, Silo

EXAMPLES, LONG_EXAMPLES = 150, 2000
RULES_PER_EXAMPLE = 12

# Silos by position. Which ones a coordinator leaves out: most often none, or one.
positions = st.integers(0, 3)
absent = st.sampled_from([(), (), (), (0,), (1,), (2,), (3,), (0, 3)])
audience = st.sampled_from([(), (0,), (1, 2), (0, 1, 3)])
# Who dies next, at which instant, and whether the power goes with it.
deaths = st.one_of(st.none(), st.tuples(positions, st.integers(1, 60), st.booleans()))
one_absent = st.sampled_from([(), (0,), (1,), (2,), (3,)])
# How far a new attempt goes at once, whom it loses and in which phase (-1 is before R0), and whom a
# second survivor set leaves out, where there is one.
plans = st.tuples(
    st.sampled_from((4, 4, 3, 3, 2, 1, 0)),
    absent,
    st.sampled_from((2, 2, 3, 1, 0, -1)),
    st.one_of(st.none(), one_absent),
)
identities = st.sampled_from(("attempt", "attempt", "attempt", "round", "again", "other", "old"))


class CrashMachine(RuleBasedStateMachine):
    """The coordinator's choices."""

    silo_type: type[Silo] = Silo
    session_type: type[Session] = Session
    # In how many examples something happened, so that a test can tell that it did.
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="chorale-crashes-"))
        self.federation: Federation | None = None

    def teardown(self) -> None:
        if self.federation is not None:
            facts = self.federation.facts()
            for name, count in facts.items():
                event(f"{name}: {'yes' if count else 'no'}")
                type(self).seen[name] += bool(count)
            self.federation.close()
        shutil.rmtree(self.directory)

    @initialize(
        count=st.sampled_from((4, 4, 4, 3)),
        suite=st.sampled_from((2, 2, 1)),
        plan=plans,
        death=deaths,
    )
    def found(self, count, suite, plan, death):
        self.federation = Federation(
            self.directory,
            silos=count,
            suite=suite,
            silo_type=self.silo_type,
            session_type=self.session_type,
        )
        self.round, self.number, self.variant = 1, 1, 0
        # For each attempt, whom the coordinator lost in each phase it has passed.
        self.lost = {}
        self.begin(plan, death)

    def named(self, chosen):
        names = self.federation.names
        return frozenset(names[position % len(names)] for position in chosen)

    def doom(self, death):
        if death is not None:
            position, instant, power = death
            silo = self.federation.silos[self.federation.names[position % 3]]
            silo.countdown, silo.power = instant, power

    def attempt(self, back=0):
        attempts = self.federation.attempts
        return attempts[max(0, len(attempts) - 1 - back)] if attempts else None

    @rule(what=identities, plan=plans, death=deaths)
    def open(self, what, plan, death):
        """A new attempt or round; the same identity, or as another descriptor; an older one."""
        if what == "attempt":
            self.number += 1
        elif what == "round":
            self.round, self.number = self.round + 1, 1
        elif what == "other":
            self.variant += 1
        elif what == "old":
            self.number = max(0, self.number - 1)
        self.begin(plan, death)

    def begin(self, plan, death):
        phases, lost, lost_at, other = plan
        attempt = self.federation.attempt(self.round, self.number, variant=self.variant)
        self.lost[id(attempt)] = ()
        self.doom(death)
        for name in sorted(set(self.federation.names) - self.named(lost if lost_at == -1 else ())):
            self.federation.silos[name].open(attempt)
        for phase in range(phases):
            self.go_on(lost if phase == lost_at else ())
        if phases == 3 and other is not None:
            self.show_other_survivors(other, ())

    @rule(absent=absent, death=deaths)
    def advance(self, absent, death):
        """One more phase of the newest attempt, as an honest coordinator who lost some silos."""
        self.doom(death)
        self.go_on(absent)

    def go_on(self, absent):
        attempt = self.attempt()
        if attempt is None or len(self.lost[id(attempt)]) == 4:
            return
        lost = (*self.lost[id(attempt)], self.named(absent))
        built = attempt.build(lost)
        if built is not None:
            self.lost[id(attempt)] = lost
            self.federation.show(attempt, built, self.federation.names)

    @rule(back=st.integers(0, 2), phase=positions, absent=absent, to=audience, death=deaths)
    def fork(self, back, phase, absent, to, death):
        """A phase that the attempt has passed, again or with another set, for some silos or all."""
        attempt = self.attempt(back)
        if attempt is None or not self.lost[id(attempt)]:
            return
        lost = self.lost[id(attempt)]
        phase %= len(lost)
        self.doom(death)
        self.show_some(attempt, (*lost[:phase], self.named(absent)), to)

    @rule(absent=one_absent, to=audience)
    def other_survivors(self, absent, to):
        """A second survivor set, and the agreement of whoever signs it."""
        self.show_other_survivors(absent, to)

    def show_other_survivors(self, absent, to):
        attempt = self.attempt()
        if attempt is None or len(self.lost[id(attempt)]) < 3:
            return
        lost = (*self.lost[id(attempt)][:2], self.named(absent))
        self.show_some(attempt, lost, to)
        self.show_some(attempt, (*lost, frozenset()), ())

    def show_some(self, attempt, lost, to):
        built = attempt.build(lost)
        if built is not None:
            self.federation.show(attempt, built, self.named(to) or self.federation.names)

    @rule(at=positions, power=st.booleans())
    def die(self, at, power):
        for name in self.named((at,)):
            self.federation.silos[name].restart(power=power)

    @rule(back=st.integers(0, 1), death=deaths)
    def finish_uploads(self, back, death):
        attempt = self.attempt(back)
        if attempt is None:
            return
        self.doom(death)
        for silo in self.federation.silos.values():
            silo.finish_upload(attempt.descriptor.identity)

    @rule(at=positions)
    def cut(self, at):
        """The next answer arrives, and its sender believes that it did not."""
        for name in self.named((at,)):
            self.federation.silos[name].cut = True

    @rule(at=positions)
    def leave(self, at):
        for name in self.named((at,)):
            self.federation.silos[name].end()

    @invariant()
    def nothing_left_that_must_not(self):
        if self.federation is not None:
            assert self.federation.auditor.violations == []


def played(machine, examples, **changes):
    """Run a machine; in how many examples each fact was seen."""
    machine.seen = Counter()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=RULES_PER_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            report_multiple_bugs=False,
            **changes,
        ),
    )
    return machine.seen


def require_reached(seen, examples):
    """The machine is about something: its examples sign, release, crash and resume."""
    least = {
        "suite v1": 0.1,
        "suite v2": 0.3,
        "signed": 0.3,
        "released": 0.1,
        "pair secrets": 0.01,
        "crashed": 0.1,
        "resumed": 0.01,
    }
    for fact, share in least.items():
        assert seen[fact] >= share * examples, (fact, seen)


# The same examples every time; the long run draws others.
def test_no_order_of_messages_and_crashes_releases_what_must_stay():
    require_reached(played(CrashMachine, EXAMPLES, derandomize=True), EXAMPLES)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_order_of_messages_and_crashes_releases_what_must_stay_long():
    require_reached(played(CrashMachine, LONG_EXAMPLES), LONG_EXAMPLES)


# Controls: silos that break one rule each -------------------------------------------------------


class SignsEverySet(Session):
    """Goes back to before R3 whenever it is shown survivors."""

    _peers_of_r1 = None

    def handle(self, message):
        state = self._state
        own = [
            header for header in getattr(message, "headers", ())
            if isinstance(message, Survivors) and header.silo_id == self._silo_id
        ]  # fmt: skip
        if isinstance(state, ConsistencyCheck):
            self._peers_of_r1 = state._peers
        if own and isinstance(state, Unmask):
            self._state = ConsistencyCheck(
                state._membership, state._vault, state._members, *own, peers=self._peers_of_r1
            )
            self._answers.pop(Survivors, None)
            self._ledger = Marked(self._ledger, "mark_agreed")
        super().handle(message)


class Marked:
    """A ledger that says it wrote one kind of record and did not."""

    def __init__(self, ledger, skipped):
        self._ledger = ledger
        self._skipped = skipped

    def __getattr__(self, name):
        return self._skip if name == self._skipped else getattr(self._ledger, name)

    def _skip(self, *arguments, **_named):
        if self._skipped != "reserve":
            return None
        (entry,) = arguments
        return Receipt(
            issuer=ISSUER,
            descriptor_sha256=entry.descriptor_sha256,
            dimension=entry.dimension,
            mode=entry.mode,
            record=self._ledger.head(),
        )


def skipping(record):
    class Skipping(Silo):
        def session_ledger(self):
            return Marked(self.ledger, record)

    return Skipping


class Forgetful(Silo):
    """Loses its ledger with its process."""

    def restart(self, *, power):
        self.session = None
        self.ledger.close()
        (self.directory / "ledger").unlink()
        self.ledger = self._opened()


CONTROLS = {
    "signs every survivor set": ({"session_type": SignsEverySet}, "two survivor sets"),
    "joins before it writes": (
        {"silo_type": skipping("mark_joined")}, "no durable record 'joined'"),
    "uploads before it writes": ({"silo_type": skipping("reserve")}, "no durable record 'spent'"),
    "signs before it writes": (
        {"silo_type": skipping("mark_agreed")}, "no durable record 'signed_r3'"),
    "loses its ledger": ({"silo_type": Forgetful}, "two key bundles|keys for|survivors of two"),
}  # fmt: skip


SLOW_CONTROLS = {"signs every survivor set"}
"""Found after a thousand examples or so; the others within a few."""


@pytest.mark.parametrize(
    "control",
    [
        pytest.param(one, marks=[pytest.mark.long] if one in SLOW_CONTROLS else [])
        for one in sorted(CONTROLS)
    ],
)
def test_the_machine_finds_a_silo_that_breaks_a_rule(control):
    changes, found = CONTROLS[control]
    machine = type("Control", (CrashMachine,), changes)
    with pytest.raises(AssertionError, match=found):
        # Ends at the first find. Keys are random, so which history shows it is not fixed.
        played(machine, 10 * EXAMPLES, derandomize=True, phases=[Phase.generate])


# One way through, and every place to die on it ---------------------------------------------------

GRID_UNITS = round(0.25 * GRID / CLIP)
FIGURE = round(32.0 / 64.0 * 4096)


@pytest.fixture
def federation(tmp_path):
    made = []

    def make(name="federation", suite=2):
        made.append(Federation(tmp_path / name, silos=4, suite=suite))
        return made[-1]

    yield make
    for one in made:
        one.close()


def aggregated(federation, attempt, lost_at_upload=frozenset(), lost_at_keys=frozenset()):
    """An honest coordinator's whole attempt; its sum, or None if it came to none."""
    for silo in federation.silos.values():
        silo.open(attempt)
    lost, built = (), None
    for absent in (frozenset(lost_at_keys), frozenset(), lost_at_upload, frozenset()):
        lost = (*lost, absent)
        built = attempt.build(lost)
        if built is None:
            return None
        federation.show(attempt, built, federation.names)
    return attempt.total(built)


@pytest.mark.parametrize("suite", [1, 2])
@pytest.mark.parametrize("lost", [(), ("silo-003",)])
def test_an_attempt_without_crashes_releases_shares_and_gives_the_sum(federation, lost, suite):
    one = federation(suite=suite)
    total = aggregated(one, one.attempt(1, 1), frozenset(lost))
    assert one.auditor.violations == []
    alive = 4 - len(lost)
    np.testing.assert_array_equal(total, [alive * GRID_UNITS] * DIMENSION + [alive * FIGURE])
    released = {(owner, kind) for (_, owner, kind), silos in one.auditor.released.items() if silos}
    expected = {(name, "msk" if name in lost else "b") for name in one.names}
    assert released == expected | {(name, "s") for name in lost if suite == 2}
    assert one.auditor.agreed == alive


class Forgetting:
    """A ledger that does not remember whose the newest sum was."""

    cohort = None

    def __init__(self, ledger):
        self._ledger = ledger

    def __getattr__(self, name):
        return getattr(self._ledger, name)


class Welcoming(Silo):
    """Takes back whoever was lost."""

    def session_ledger(self):
        return Forgetting(self.ledger)


def test_the_auditor_finds_a_silo_that_takes_back_whom_it_lost(tmp_path):
    one = Federation(tmp_path, silos=4, suite=2, silo_type=Welcoming)
    aggregated(one, one.attempt(1, 1), lost_at_upload=frozenset({"silo-003"}))
    assert one.auditor.violations == []
    aggregated(one, one.attempt(2, 1))
    assert all("a silo came back" in text for text in one.auditor.violations)
    assert len(one.auditor.violations) == 3
    one.close()


@pytest.mark.parametrize(
    ("power", "suite"),
    [
        pytest.param(False, 1, id="killed-v1", marks=pytest.mark.long),
        pytest.param(False, 2, id="killed-v2"),
        pytest.param(True, 1, id="power cut-v1"),
        pytest.param(True, 2, id="power cut-v2", marks=pytest.mark.long),
    ],
)
def test_a_silo_may_die_at_any_instant_and_takes_part_again_in_the_next_round(
    federation, power, suite
):
    died = completed = 0
    for instant in range(1, 200):
        one = federation(f"{power}-{instant}", suite)
        victim = one.silos["silo-001"]
        victim.countdown, victim.power = instant, power
        first = one.attempt(1, 1)
        completed += aggregated(one, first) is not None
        crashed = one.disk.crashes
        died += crashed
        # The coordinator finds out nothing by trying the same again, nor another attempt.
        victim.finish_upload(first.descriptor.identity)
        aggregated(one, first)
        aggregated(one, one.attempt(1, 1, variant=1))
        aggregated(one, one.attempt(1, 2))
        assert one.auditor.violations == []
        # Without noise whoever was lost from a sum stays out.
        cohorts = [silo.ledger.cohort or set(one.names) for silo in one.silos.values()]
        kept = frozenset.intersection(*map(frozenset, cohorts))
        total = aggregated(one, one.attempt(2, 1), lost_at_keys=set(one.names) - kept)
        count = len(kept)
        assert kept >= set(one.names) - {victim.name}
        np.testing.assert_array_equal(total, [count * GRID_UNITS] * DIMENSION + [count * FIGURE])
        assert one.auditor.violations == []
        one.close()
        if not crashed:
            break
    assert died > 30
    # Whoever dies late has its part in the sum all the same: t of four are enough.
    assert 0 < completed <= died + 1
