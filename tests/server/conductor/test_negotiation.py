"""The coordinator negotiates: two rounds at most, one plan for all, and silos that lie.

A failure: a third round, an amended plan that a range does not allow or that a bad offer made, an
offer that counts and lies outside the ranges, a plan that starts before the time that was agreed.
"""

import asyncio
import json

import pytest

from federation.chain.preflight import PreflightAnswer, Verdict
from federation.errors import ChainError, PlanError
from federation.plan.negotiation import Amended, Offer, amend, run_epsilon
from federation.plan.plan import plan_sha256
from federation.plan.read import read_plan
from federation.version import OFFERS
from federation.wire import preflight_answer_from_proto, preflight_answer_to_proto
from server.conductor.preflight import CANNOT_SAY, NO_ANSWER
from server.errors import PreflightAnswerError
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.server import world as sw
from tests.kit.server.server_runs import details

RANGES = b"\n[negotiation]\nleast_local_epochs = 1\nstart_within_s = 7200\nleast_epsilon = 1.0\n"
PLAN = sw.plan_toml(mode="silo", noise=4.0) + RANGES
BARE = sw.plan_toml(mode="silo", noise=4.0)
SILOS = tuple(f"silo-00{number}" for number in range(4))
LESS = Offer(epsilon_quarters=5)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=4) as made:
        for name in made.silos:
            made.context.liveness.touch(name)
        yield made


def minute(world, ahead_s):
    return (int(world.clock()) + ahead_s) // 60 * 60


def answer(asked, silo_id, offer=None, *, verdict=None, rule="", key=None):
    said = verdict or (Verdict.ACCEPT if offer is None else Verdict.OFFER)
    return PreflightAnswer(
        preflight_sha256=asked.sha256,
        silo_id=silo_id,
        verdict=said,
        rule=rule or ("epsilon_per_run" if offer else ""),
        offer=offer,
    ).sign(key or signing_key(silo_id))


def negotiate(world, say, *, plan=PLAN, together=True, token="t"):
    """Ask, ``say(silo, round, asked)`` being what each silo answers; the statuses, without polls.

    A round is known by its plan.
    """
    rounds = {}

    def act():
        preflights = world.conductor.preflights
        for silo_id in SILOS:
            world.context.liveness.touch(silo_id)
            asked = preflights.question(silo_id, OFFERS)
            if asked is None:
                continue
            number = rounds.setdefault(asked.plan_sha256, len(rounds) + 1)
            said = say(silo_id, number, asked)
            if said is not None:
                preflights.receive(said)

    async def all_of_it():
        world.before_wait = act
        return [
            status
            async for status in world.conductor.ask_silos(
                plan, token, admin="ada", negotiate=together
            )
        ]

    return asyncio.run(all_of_it()), rounds


def verdicts(status):
    return {one.silo_id: one.verdict for one in status.verdicts}


def offering(offers, again=None):
    """Silos with an offer to the first plan and to the second; the others accept."""

    def say(silo_id, number, asked):
        return answer(asked, silo_id, (offers if number == 1 else again or {}).get(silo_id))

    return say


def test_offers_make_one_plan_about_which_everybody_is_asked_once_more(world):
    start = minute(world, 3600)
    offers = {SILOS[1]: LESS, SILOS[2]: Offer(epsilon_quarters=6, start_after_unix_s=start)}
    statuses, rounds = negotiate(world, offering(offers))
    first = [one for one in statuses if one.round == 1]
    second = [one for one in statuses if one.round == 2]
    assert first + second == statuses
    assert [one.complete for one in (first[-1], second[-1])] == [True, True]
    assert verdicts(first[-1]) == {
        SILOS[0]: "accept", SILOS[1]: "offer", SILOS[2]: "offer", SILOS[3]: "accept",
    }  # fmt: skip
    shown = {one.silo_id: one.offer.epsilon_quarters for one in first[-1].verdicts}
    assert shown == {SILOS[0]: 0, SILOS[1]: 5, SILOS[2]: 6, SILOS[3]: 0}
    assert not first[-1].amended_plan
    assert set(verdicts(second[-1]).values()) == {"accept"}
    # What was asked about is what anybody computes from plan, offers and time.
    made = amend(PLAN, offers, now_unix_s=int(world.clock()))
    assert isinstance(made, Amended)
    assert all(one.amended_plan == made.plan_toml for one in second)
    assert list(rounds) == [plan_sha256(PLAN), plan_sha256(made.plan_toml)]
    after = read_plan(made.plan_toml)
    assert run_epsilon(after) <= 1.25
    assert after.rounds.start_after_unix_s == start
    assert [move.key for move in second[-1].moves] == [move.key for move in made.moves]
    # All of it is audited, in order.
    events = [json.loads(line)["event"] for line in world.audit.tail(1000)]
    said = [event for event in events if event.startswith(("preflight", "plan"))]
    asked = ["preflight_asked", *["preflight_answered"] * 4]
    assert said == [*asked, "plan_amended", *asked]
    offered = [one.get("epsilon_quarters") for one in details(world, "preflight_answered")]
    assert offered == [None, 5, 6, None, None, None, None, None]
    (noted,) = details(world, "plan_amended")
    assert noted["plan"] == plan_sha256(PLAN).hex()
    assert noted["amended"] == plan_sha256(made.plan_toml).hex()
    assert (noted["token"], noted["admin"]) == ("t", "ada")
    assert f"rounds.start_after_unix_s: not set -> {start}" in noted["moves"]
    assert not world.store.runs.list()


def test_what_is_offered_to_the_amended_plan_is_shown_and_not_taken_up(world):
    """However often silos find something new to ask for, they are asked twice."""
    again = dict.fromkeys(SILOS, Offer(epsilon_quarters=4))
    statuses, rounds = negotiate(world, offering(dict.fromkeys(SILOS, LESS), again))
    assert len(rounds) == 2
    assert statuses[-1].round == 2
    assert statuses[-1].complete
    assert set(verdicts(statuses[-1]).values()) == {"offer"}
    assert len(details(world, "preflight_asked")) == 2


def test_without_offers_there_is_one_round(world):
    def say(silo_id, _number, asked):
        if silo_id == SILOS[0]:
            return answer(asked, silo_id, verdict=Verdict.REFUSE, rule="rounds")
        return answer(asked, silo_id)

    statuses, rounds = negotiate(world, say)
    assert len(rounds) == 1
    assert (statuses[-1].complete, statuses[-1].amended_plan) == (True, b"")
    assert list(statuses[-1].not_amended) == []
    assert details(world, "plan_amended") == details(world, "plan_not_amended") == []


def test_who_does_not_negotiate_is_shown_the_offers_alone(world):
    statuses, rounds = negotiate(world, offering({SILOS[1]: LESS}), together=False)
    assert len(rounds) == 1
    assert verdicts(statuses[-1])[SILOS[1]] == "offer"
    assert statuses[-1].amended_plan == b""


def test_where_no_plan_comes_of_the_offers_it_is_said_and_nobody_is_asked_again(world):
    # Each offer alone leaves the document to be changed; the quoted key cannot be.
    quoted = PLAN.replace(b"\nnoise_multiplier", b'\n"noise_multiplier"')
    statuses, rounds = negotiate(world, offering({SILOS[1]: LESS}), plan=quoted)
    assert len(rounds) == 1
    (problem,) = statuses[-1].not_amended
    assert "privacy.noise_multiplier" in problem
    (noted,) = details(world, "plan_not_amended")
    assert noted["reason"] == problem


def test_a_silo_of_an_earlier_protocol_is_not_asked_about_a_plan_that_it_cannot_read(world):
    def act(preflights):
        assert preflights.question(SILOS[0], OFFERS - 1) is None
        for silo_id in SILOS[1:]:
            world.context.liveness.touch(silo_id)
            asked = preflights.question(silo_id, OFFERS)
            if asked is not None:
                preflights.receive(answer(asked, silo_id))

    async def ask(plan):
        world.before_wait = lambda: act(world.conductor.preflights)
        return [one async for one in world.conductor.ask_silos(plan, "t", admin="ada")][-1]

    assert verdicts(asyncio.run(ask(PLAN)))[SILOS[0]] == CANNOT_SAY


# Silos that lie -------------------------------------------------------------------------------


HOSTILE = {
    "below the least epsilon": (PLAN, lambda _: Offer(epsilon_quarters=3)),
    "more epsilon": (PLAN, lambda _: Offer(epsilon_quarters=400)),
    "as many epochs": (PLAN, lambda _: Offer(local_epochs=1)),
    "more epochs": (PLAN, lambda _: Offer(local_epochs=100)),
    "too late": (PLAN, lambda world: Offer(start_after_unix_s=minute(world, 7200 + 300))),
    "in a hundred years": (PLAN, lambda _: Offer(start_after_unix_s=4_955_040_000)),
    "in the past": (PLAN, lambda world: Offer(start_after_unix_s=minute(world, -3600))),
    "no negotiation": (BARE, lambda _: LESS),
    "one term of two": (PLAN, lambda _: Offer(epsilon_quarters=5, local_epochs=7)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_offer_outside_the_ranges_is_a_typed_error_and_the_asking_goes_on(world, name):
    plan, terms = HOSTILE[name]
    refused = []

    def say(silo_id, _number, asked):
        if silo_id != SILOS[3]:
            return answer(asked, silo_id)
        bad = answer(asked, silo_id, terms(world))
        with pytest.raises(PreflightAnswerError, match="silo-003 offers") as caught:
            world.conductor.preflights.receive(bad)
        refused.append(caught.value)
        return None

    statuses, rounds = negotiate(world, say, plan=plan)
    assert refused
    assert len(rounds) == 1
    assert verdicts(statuses[-1]) == {**dict.fromkeys(SILOS, "accept"), SILOS[3]: NO_ANSWER}
    assert details(world, "plan_amended") == []
    assert "offer" not in {one["verdict"] for one in details(world, "preflight_answered")}


def test_a_liar_amends_nothing_and_keeps_no_honest_offer_from_counting(world):
    def say(silo_id, number, asked):
        if silo_id == SILOS[3]:
            bad = answer(asked, silo_id, Offer(epsilon_quarters=1))
            with pytest.raises(PreflightAnswerError):
                world.conductor.preflights.receive(bad)
            return None
        return answer(asked, silo_id, LESS if (silo_id, number) == (SILOS[1], 1) else None)

    statuses, rounds = negotiate(world, say)
    assert len(rounds) == 2
    assert run_epsilon(read_plan(statuses[-1].amended_plan)) > 1.0
    assert verdicts(statuses[-1]) == {**dict.fromkeys(SILOS, "accept"), SILOS[3]: NO_ANSWER}


@pytest.mark.parametrize("forgery", ["other key", "altered", "replayed", "other silo", "twice"])
def test_a_forged_offer_changes_nothing(world, forgery):
    old = []

    def say(silo_id, number, asked):
        if silo_id != SILOS[1] or number == 2:
            return answer(asked, silo_id)
        honest = answer(asked, silo_id, LESS)
        old.append(honest)
        if forgery == "twice":
            world.conductor.preflights.receive(honest)
            bad = answer(asked, silo_id, Offer(epsilon_quarters=4))
        elif forgery == "other key":
            bad = answer(asked, silo_id, LESS, key=signing_key(SILOS[2]))
        elif forgery == "other silo":
            bad = answer(asked, SILOS[2], LESS, key=signing_key(SILOS[1]))
        elif forgery == "altered":
            message = preflight_answer_to_proto(honest)
            message.offer.epsilon_quarters = 4
            bad = preflight_answer_from_proto(message)
        else:
            bad = old[0]
            if asked.submit_token == "t":
                return honest
        with pytest.raises(PreflightAnswerError):
            world.conductor.preflights.receive(bad)
        return None if forgery == "twice" else honest

    if forgery == "replayed":
        negotiate(world, say)
    statuses, _ = negotiate(world, say, token="u" if forgery == "replayed" else "t")
    made = amend(PLAN, {SILOS[1]: LESS}, now_unix_s=int(world.clock()))
    assert statuses[-1].amended_plan == made.plan_toml


def test_a_malformed_offer_does_not_come_as_far(world):
    asked = []
    negotiate(world, lambda silo_id, _, one: asked.append(one) or answer(one, silo_id))
    message = preflight_answer_to_proto(answer(asked[0], SILOS[0], LESS))
    message.offer.epsilon_quarters = 2**32 - 1
    with pytest.raises(ChainError):
        preflight_answer_from_proto(message)


# The start ------------------------------------------------------------------------------------


def test_a_run_of_an_amended_plan_starts_at_its_time_and_no_earlier(world):
    start = minute(world, 3600)
    made = amend(PLAN, {"a": Offer(start_after_unix_s=start)}, now_unix_s=int(world.clock()))

    async def begin():
        return await world.conductor.start_run(made.plan_toml, sw.INITIAL, "t")

    with pytest.raises(PlanError, match=r"rounds\.start_after_unix_s: it starts no earlier than"):
        asyncio.run(begin())
    assert not world.store.runs.list()
    world.clock.now = float(start)
    assert asyncio.run(begin())
    assert len(world.store.runs.list()) == 1
