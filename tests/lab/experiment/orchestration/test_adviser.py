"""The rule that answers as an endpoint: what it proposes, and that it is refused like a model."""

import json

import pytest

from federation.advice.conversation import Asking, Budget, Failure, begin
from federation.advice.proposal import Limits, Proposal
from federation.advice.record import AdviceRecord, replay
from federation.advice.state import (
    PublishedFacts,
    RoundOutcome,
    RoundState,
    RoundSummary,
    SiloState,
)
from federation.membership.facts import Availability, FreeGpu
from lab.experiment.orchestration import adviser
from lab.experiment.orchestration.consult import consult

SILOS = tuple(f"silo-{place:02d}" for place in range(12))


def state(*rounds, names=False, silos=None):
    limits = Limits(
        may_choose=True, names_silos=names, least=5, alive=SILOS, ready_deadline_s=(1800, 7200),
        local_epochs=None, may_stop=False, may_diagnose=True,
    )  # fmt: skip
    told = silos or {}
    return RoundState(
        round=len(rounds) + 1,
        rounds=20,
        limits=limits,
        silos=tuple(
            told.get(silo_id) or SiloState(id=silo_id, families=1, lost_in_a_row=0)
            for silo_id in SILOS
        ),
        history=tuple(
            RoundSummary(
                round=number, asked=asked, survivors=survivors, outcome=outcome, seconds=seconds,
                upload_bytes=1, success=success, success_error=None if success is None else 0.01,
            )
            for number, (asked, survivors, outcome, seconds, success) in enumerate(rounds, 1)
        ),
    )  # fmt: skip


def asked(of):
    record = consult(of, Budget(), adviser.MODEL, lambda request: (adviser.answer(request), 5))
    assert replay(AdviceRecord.decode(record.encode())) == record.result
    return record


def proposal(*rounds, **changes):
    found = asked(state(*rounds, **changes)).result
    assert isinstance(found, Proposal)
    return found


DONE, LOST = RoundOutcome.AGGREGATED, RoundOutcome.SKIPPED


@pytest.mark.parametrize(
    ("rounds", "count", "deadline_s"),
    [
        ((), 6, 7200),
        # Everybody answered after 2000 s; success rose by more than the error of the difference.
        (((8, 8, DONE, 2000, 0.3), (8, 8, DONE, 2000, 0.4)), 6, 2500),
        # By less than it; most answered, so the deadline stays.
        (((8, 8, DONE, 2000, 0.3), (8, 6, DONE, 3000, 0.31)), 10, 3000),
        # Nine of ten.
        (((10, 9, DONE, 4000, 0.3),), 12, 3500),
        # Fewer than six of ten answered.
        (((10, 5, DONE, 2000, 0.3),), 12, 2500),
        (((6, 2, LOST, 2000, None),), 9, 3000),
        # Within the limits, whatever the rule would say.
        (((12, 4, LOST, 7000, None),), 12, 7200),
        (((5, 5, DONE, 100, 0.3), (5, 5, DONE, 100, 0.5)), 5, 1800),
    ],
)
def test_what_it_proposes(rounds, count, deadline_s):
    found = proposal(*rounds)
    assert (found.count, found.ready_deadline_s) == (count, deadline_s)
    assert (found.stop, found.diagnose, found.local_epochs) == (False, False, None)


def test_it_looks_facts_up_and_names_those_it_expects_soonest():
    facts = {
        "silo-00": PublishedFacts(availability=Availability.DOWN),
        "silo-01": PublishedFacts(queue=5, free_gpu=FreeGpu.NONE),
        "silo-02": PublishedFacts(availability=Availability.UP, queue=0, free_gpu=FreeGpu.ALL),
        "silo-03": PublishedFacts(availability=Availability.UP, queue=0, free_gpu=FreeGpu.ALL),
    }
    silos = {
        silo_id: SiloState(
            id=silo_id,
            facts=facts.get(silo_id, PublishedFacts(queue=2)),
            families=1,
            # What it says does not help one that was lost.
            lost_in_a_row=int(silo_id == "silo-03"),
        )
        for silo_id in SILOS
    }
    record = asked(state(names=True, silos=silos))
    assert len(record.turns) == 2
    assert record.result.count is None
    named = set(record.result.silos)
    assert len(named) == 6
    assert "silo-02" in named
    assert not named & {"silo-00", "silo-01", "silo-03"}


def test_what_it_cannot_read_it_answers_with_what_is_refused():
    step = begin(state(), Budget(), "rule")
    for request in (b"", b"[]", b'{"messages": []}', b"\xff"):
        (choice,) = json.loads(adviser.answer(request))["choices"]
        assert isinstance(step.answered(adviser.answer(request)), Asking)
        assert choice["message"]["content"]


def test_an_endpoint_that_fails_or_floods_ends_the_consultation():
    assert consult(state(), Budget(), "x", lambda _: (Failure.TIMEOUT, 3)).result.failure == (
        "timeout"
    )
    flood = consult(state(), Budget(), "x", lambda _: (b"0" * (1 << 20), 3))
    assert flood.result.failure == "too_large"
    assert flood.turns[0].milliseconds == 3
    # A budget that bears no request.
    poor = consult(state(), Budget(tokens=256), "x", lambda _: (b"", 0))
    assert (poor.turns, poor.result.gave_up) == ((), "tokens")
