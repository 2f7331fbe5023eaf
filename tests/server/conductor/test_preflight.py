"""The coordinator asks the silos before a run: who answers what, who does not, and who lies.

A failure: an answer that counts and is not its silo's own to this question, a silo that is waited
for without end, a round that an asking disturbs.
"""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from chorale.v1 import round_pb2
from federation.chain.preflight import Preflight, PreflightAnswer, Verdict
from federation.errors import PlanError
from federation.version import PREFLIGHTS
from federation.wire import preflight_from_proto
from secagg import suite
from server.conductor.preflight import ABSENT, AGAIN_S, ANSWER_WITHIN_S, CANNOT_SAY, NO_ANSWER
from server.errors import PreflightAnswerError, SubmitTokenError
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, signing_key
from tests.kit.server import world as sw
from tests.kit.server.server_runs import details

PLAN = sw.plan_toml()
ME = "silo-000"


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=4) as made:
        for name in made.silos:
            made.context.liveness.touch(name)
        yield made


def answer(asked, silo_id=ME, verdict=Verdict.ACCEPT, rule="", key=None):
    made = PreflightAnswer(
        preflight_sha256=asked.sha256, silo_id=silo_id, verdict=verdict, rule=rule
    )
    return made.sign(key or signing_key(silo_id))


def ask(world, act, *, plan=PLAN, token="t"):
    """Ask, letting ``act`` play the silos whenever the coordinator waits; every status it saw."""

    async def all_of_it():
        world.before_wait = lambda: act(world.conductor.preflights)
        seen = []
        async for status in world.conductor.ask_silos(plan, token, admin="ada"):
            seen.append({one.silo_id: one.verdict for one in status.verdicts})
            for silo_id, verdict in seen[-1].items():
                if not verdict:
                    world.context.liveness.touch(silo_id)
            last = status
        return seen, last

    return asyncio.run(all_of_it())


def answering(**said):
    """Silos that each answer once they are asked; those not named accept."""

    def act(preflights):
        for number in range(4):
            silo_id = f"silo-00{number}"
            asked = preflights.question(silo_id, PREFLIGHTS)
            if asked is not None:
                words = said.get(silo_id.replace("-", "_"), {})
                preflights.receive(answer(asked, silo_id, **words))

    return act


def test_what_every_silo_says_is_shown_and_audited(world):
    act = answering(
        silo_001={"verdict": Verdict.REFUSE, "rule": "rounds"},
        silo_002={"verdict": Verdict.WAITS_FOR_APPROVAL},
    )
    seen, last = ask(world, act)
    assert set(seen[0].values()) == {""}
    assert seen[-1] == {
        "silo-000": "accept",
        "silo-001": "refuse",
        "silo-002": "waits_for_approval",
        "silo-003": "accept",
    }
    assert last.complete
    (refusal,) = [one for one in last.verdicts if one.rule]
    assert refusal.reason == "the site's policy does not allow so many rounds"
    (asked,) = details(world, "preflight_asked")
    assert (asked["token"], asked["admin"]) == ("t", "ada")
    assert [one["verdict"] for one in details(world, "preflight_answered")] == [
        "accept", "refuse", "waits_for_approval", "accept",
    ]  # fmt: skip
    # Nothing was started, and nothing is out any more.
    assert not world.store.runs.list()
    assert world.conductor.preflights.question(ME, PREFLIGHTS) is None


def test_who_is_old_absent_or_silent_is_no_accept_and_is_not_waited_for(world):
    world.context.liveness.bar("silo-001", barred=True)

    def act(preflights):
        assert preflights.question("silo-002", 1) is None
        asked = preflights.question(ME, PREFLIGHTS)
        if asked is not None:
            preflights.receive(answer(asked))

    began = world.clock()
    seen, _ = ask(world, act)
    assert seen[-1] == {
        "silo-000": "accept",
        "silo-001": ABSENT,
        "silo-002": CANNOT_SAY,
        "silo-003": NO_ANSWER,
    }
    assert seen[0]["silo-001"] == ABSENT
    assert ANSWER_WITHIN_S <= world.clock() - began < ANSWER_WITHIN_S + 3


def test_a_silo_that_was_never_heard_of_is_absent_at_once(tmp_path):
    with sw.World(tmp_path, silos=4) as world:
        began = world.clock()
        seen, _ = ask(world, lambda _: None)
        assert (set(seen[-1].values()), world.clock()) == ({ABSENT}, began)


def test_a_question_that_got_lost_is_told_again(world):
    told = []

    def act(preflights):
        for silo_id in world.silos:
            asked = preflights.question(silo_id, PREFLIGHTS)
            if asked is not None and (silo_id != ME or told.append(world.clock()) or told[2:]):
                preflights.receive(answer(asked, silo_id))

    seen, _ = ask(world, act)
    assert set(seen[-1].values()) == {"accept"}
    assert len(told) == 3
    assert all(later - earlier >= AGAIN_S for earlier, later in pairwise(told))


def test_the_same_token_asks_the_very_same_question(world):
    asked = []

    def act(preflights):
        found = preflights.question(ME, PREFLIGHTS)
        if found is not None:
            asked.append(found)
            preflights.receive(answer(found))
            for silo_id in tuple(world.silos)[1:]:
                preflights.receive(answer(found, silo_id))

    for token in ("t", "t", "u"):
        ask(world, act, token=token)
    assert asked[0] == asked[1]
    assert asked[2].sha256 != asked[0].sha256
    asked[0].verify(suite.verification_key(COORDINATOR_KEY))


@pytest.mark.parametrize(
    "forge",
    [
        lambda asked: answer(replace(asked, plan_sha256=bytes(32))),
        lambda asked: answer(replace(asked, roster_sha256=bytes(32))),
        lambda asked: answer(replace(asked, submit_token="earlier")),
        lambda asked: answer(asked, key=signing_key("silo-001")),
        lambda asked: replace(answer(asked), signature=b""),
        lambda asked: replace(answer(asked), silo_id="silo-001"),
        lambda asked: replace(answer(asked), verdict=Verdict.WAITS_FOR_APPROVAL),
        lambda asked: answer(asked, "silo-009"),
    ],
    ids=[
        "plan",
        "roster",
        "replayed",
        "other key",
        "unsigned",
        "other silo",
        "altered",
        "stranger",
    ],
)
def test_a_hostile_answer_is_a_typed_error_and_changes_nothing(world, forge):
    refused = []

    def act(preflights):
        asked = preflights.question(ME, PREFLIGHTS)
        if asked is None:
            return
        with pytest.raises(PreflightAnswerError) as found:
            preflights.receive(forge(asked))
        refused.append(found.value)
        answering()(preflights)
        preflights.receive(answer(asked))

    seen, _ = ask(world, act)
    assert len(refused) == 1
    assert set(seen[-1].values()) == {"accept"}


def test_an_answer_cannot_be_taken_back_and_none_is_taken_later(world):
    asked = []

    def act(preflights):
        found = preflights.question(ME, PREFLIGHTS)
        if found is not None:
            asked.append(found)
            preflights.receive(answer(found))
            # The very same again: the acknowledgement was lost.
            preflights.receive(answer(found))
            with pytest.raises(PreflightAnswerError, match="otherwise before"):
                preflights.receive(answer(found, verdict=Verdict.REFUSE, rule="clip"))
        answering()(preflights)

    ask(world, act)
    assert len(details(world, "preflight_answered")) == 4
    with pytest.raises(PreflightAnswerError, match="no such pre-flight"):
        world.conductor.preflights.receive(answer(asked[0]))


def test_what_cannot_be_asked_is_refused(world):
    with pytest.raises(SubmitTokenError):
        ask(world, lambda _: None, token="a b")
    with pytest.raises(PlanError):
        ask(world, lambda _: None, plan=b"no plan")
    assert details(world, "preflight_asked") == []


def test_a_poll_says_the_question_beside_the_instruction_and_takes_nothing_from_it(world):
    conductor = world.conductor

    async def go():
        read = round_pb2.PollResponse.FromString
        world.before_wait = lambda: None
        idle = read(await conductor.poll(ME, "", 0))
        statuses = conductor.ask_silos(PLAN, "t", admin="ada")
        await anext(statuses)
        old = read(await conductor.poll("silo-001", idle.instruction_id, 0, protocol=1))
        told = read(await conductor.poll(ME, idle.instruction_id, 5))
        fresh = read(await conductor.poll("silo-002", "", 5))
        again = read(await conductor.poll(ME, idle.instruction_id, 0))
        plan = conductor.preflights.plan(told.preflight.plan_sha256)
        await statuses.aclose()
        return idle, old, told, fresh, again, plan

    idle, old, told, fresh, again, plan = asyncio.run(go())
    assert idle.WhichOneof("instruction") == "idle"
    # Nothing changed for this silo but the question; it does not lose its place.
    assert told.instruction_id == idle.instruction_id
    assert told.WhichOneof("instruction") is None
    asked = preflight_from_proto(told.preflight)
    assert isinstance(asked, Preflight)
    assert fresh.WhichOneof("instruction") == "idle"
    assert preflight_from_proto(fresh.preflight) == asked
    assert not again.HasField("preflight")
    assert not old.HasField("preflight")
    assert plan == PLAN
    assert conductor.preflights.plan(asked.plan_sha256) is None
