"""Counter-offers by the real rules: only what the site opted into, the plan asks for and all allow.

A failure: an offer that the policy did not let be made, that lies outside the plan's ranges, that
the site's own rules would refuse, or that asks for more than it has to.
"""

from dataclasses import replace

import pytest

from dp.ledger.ledger import Ledger
from federation.chain.preflight import Preflight
from federation.plan.negotiation import QUARTERS, Offer, outside, plan_with, run_epsilon
from federation.plan.plan import plan_sha256
from federation.plan.read import read_plan
from silo_agent.daemon.gate import Gate
from silo_agent.metrics import SiloMetrics
from tests.kit.dp.ledgers import charge, entry
from tests.kit.silo_agent.policy_samples import BASE, MODES, NOW_UNIX_S, PLAN, SITE, make_policy

RANGES = "\n[negotiation]\nleast_local_epochs = 2\nstart_within_s = 86400\nleast_epsilon = 2.0\n"
EPOCHS = ("tries_per_task = 4", "tries_per_task = 4\nlocal_epochs = 5")
ALL = ("\n[limits]", "\n[offers]\nlocal_epochs = true\nstart = true\nepsilon = true\n[limits]")
NONE = ALL[0], ALL[0]
ANY_TIME = ('hours_utc = "07:30-08:30"', "")
FEW_EPOCHS = ("max_dimension = 128", "max_dimension = 128\nmax_local_epochs = 3")
LATER = ('hours_utc = "07:30-08:30"', 'hours_utc = "20:15-06:00"')
LATER_S = NOW_UNIX_S + 12 * 3600 + 15 * 60
LESS = ("max_epsilon_per_run = 6.0", "max_epsilon_per_run = 3.1")
LESS_EVER = ("silo = 50.0", "silo = 2.9")
MORE_NOISE = ("min_noise_multiplier = 4.0", "min_noise_multiplier = 4.4")


@pytest.fixture(autouse=True)
def at_eight(monkeypatch):
    monkeypatch.setattr("silo_agent.daemon.gate.time.time", lambda: float(NOW_UNIX_S))


@pytest.fixture
def judged(tmp_path):
    """The guardian's verdict on a question about a plan."""
    made = []

    def judge(*policy, plan=(EPOCHS,), ranges=RANGES, mode="silo", offers=ALL, spent=0):
        text = PLAN
        for old, new in (*MODES[mode], *plan):
            assert old in text
            text = text.replace(old, new)
        toml = (text + ranges).encode()
        changes = (*policy, offers) if offers != NONE else policy
        rules = make_policy(*changes)
        directory = tmp_path / str(len(made))
        directory.mkdir()
        ledger = Ledger.open(
            directory / "privacy.ledger", delta=rules.privacy.delta, caps=rules.privacy.caps()
        )
        made.append(ledger)
        for number in range(spent):
            ledger.reserve(entry(number, charges=(charge(z=2.0),)))
        gate = Gate(directory, rules, SiloMetrics())
        parsed = read_plan(toml)
        asked = Preflight(plan_sha256=plan_sha256(toml), roster_sha256=bytes(32), submit_token="t")

        def verdict(one):
            return gate.judge_preflight(asked, one, site=SITE, ledger=ledger)

        decision = verdict(parsed)
        if decision.offer is not None:
            # What is offered lies inside the ranges, and would be accepted.
            assert outside(parsed, decision.offer, now_unix_s=NOW_UNIX_S) == ()
            assert verdict(plan_with(parsed, decision.offer)).accepted
        return decision

    yield judge
    for ledger in made:
        ledger.close()


@pytest.mark.parametrize(
    ("policy", "rule", "offer"),
    [
        ((FEW_EPOCHS, ANY_TIME), "local_epochs", Offer(local_epochs=3)),
        ((LATER,), "schedule", Offer(start_after_unix_s=LATER_S)),
        ((LESS, ANY_TIME), "epsilon_per_run", Offer(epsilon_quarters=12)),
        ((LESS_EVER, ANY_TIME), "run_above_cap", Offer(epsilon_quarters=11)),
        ((MORE_NOISE, ANY_TIME), "noise_multiplier", Offer(epsilon_quarters=14)),
        (
            (FEW_EPOCHS, LATER, LESS),
            "epsilon_per_run",
            Offer(local_epochs=3, start_after_unix_s=LATER_S, epsilon_quarters=12),
        ),
    ],
)
def test_the_rule_that_refuses_decides_what_is_offered(judged, policy, rule, offer):
    decision = judged(*policy)
    assert (decision.accepted, decision.rule, decision.offer) == (False, rule, offer)
    # The site did not opt in, or the plan asks for nothing: a refusal as it was.
    assert judged(*policy, offers=NONE).offer is None
    assert judged(*policy, ranges="").offer is None


@pytest.mark.parametrize("term", ["local_epochs", "start", "epsilon"])
def test_each_term_is_opted_into_by_itself(judged, term):
    only = ("\n[limits]", f"\n[offers]\n{term} = true\n[limits]")
    alone = {
        "local_epochs": (FEW_EPOCHS, ANY_TIME),
        "start": (LATER,),
        "epsilon": (LESS, ANY_TIME),
    }
    made = {name for name, policy in alone.items() if judged(*policy, offers=only).offer}
    assert made == {term}
    # Where one term is not to be offered, the others would not help.
    assert judged(FEW_EPOCHS, LATER, LESS, offers=only).offer is None


@pytest.mark.parametrize(
    ("policy", "ranges"),
    [
        ((FEW_EPOCHS, ANY_TIME), "least_local_epochs = 4"),
        ((FEW_EPOCHS, ANY_TIME), "start_within_s = 86400"),
        ((LATER,), "start_within_s = 44099"),
        ((LATER,), "least_epsilon = 2.0"),
        ((LESS, ANY_TIME), "least_epsilon = 3.2"),
        ((LESS, ANY_TIME), "start_within_s = 86400"),
    ],
)
def test_nothing_is_offered_beyond_what_the_plan_asks_for(judged, policy, ranges):
    decision = judged(*policy, ranges=f"\n[negotiation]\n{ranges}\n")
    assert not decision.accepted
    assert decision.offer is None


@pytest.mark.parametrize(
    "policy",
    [
        ("max_rounds = 5", "max_rounds = 4"),
        (BASE.hex(), "cd" * 32),
        ("max_clip_l2 = 2.0", "max_clip_l2 = 1.0"),
        ("max_attempts_per_day = 60", "max_attempts_per_day = 0"),
    ],
)
def test_what_no_offer_helps_is_refused_even_beside_what_one_would(judged, policy):
    assert judged(policy, ANY_TIME).offer is None
    assert judged(policy, FEW_EPOCHS, LATER, LESS).offer is None


def test_an_accepted_plan_is_offered_nothing(judged):
    decision = judged(ANY_TIME)
    assert (decision.accepted, decision.offer) == (True, None)


def test_hours_that_never_come_are_not_offered(judged):
    never = ('hours_utc = "07:30-08:30"', 'hours_utc = "09:00-09:00"')
    assert judged(never).offer is None


def test_hours_past_midnight_begin_the_next_day(judged):
    tomorrow = ('hours_utc = "07:30-08:30"', 'hours_utc = "07:00-07:30"')
    assert judged(tomorrow).offer == Offer(start_after_unix_s=NOW_UNIX_S + 23 * 3600)


def test_a_plan_that_starts_later_is_judged_at_its_start(judged):
    late = ("count = 5", f"count = 5\nstart_after_unix_s = {LATER_S}")
    assert judged(LATER, plan=(EPOCHS, late)).accepted
    decision = judged(plan=(EPOCHS, late))
    assert decision.rule == "schedule"
    assert decision.offer == Offer(start_after_unix_s=NOW_UNIX_S + 24 * 3600 - 1800)


@pytest.mark.parametrize(("cap", "quarters"), [(4.94, 12), (4.96, 12), (5.05, 15), (4.8, None)])
def test_what_is_left_of_the_budget_is_told_to_a_quarter(judged, cap, quarters):
    """ε 4.75 is spent; a round of the plan would make 5.07 of it, and at ε 3 of the run 4.94."""
    decision = judged(("silo = 50.0", f"silo = {cap}"), ANY_TIME, spent=4)
    assert decision.rule == "epsilon_cap"
    offered = None if quarters is None else Offer(epsilon_quarters=quarters)
    assert decision.offer == offered


@pytest.mark.parametrize("mode", ["record_local", "record_distributed"])
def test_a_record_mode_is_offered_in_too(judged, mode):
    modes = ('modes = ["silo"]', f'modes = ["{mode}"]')
    less = ("max_epsilon_per_run = 6.0", "max_epsilon_per_run = 2.6")
    noise = ("max_clip_l2 = 2.0", "max_clip_l2 = 3.0")
    ranges = "\n[negotiation]\nleast_epsilon = 2.0\n"
    decision = judged(modes, less, noise, ANY_TIME, plan=(), ranges=ranges, mode=mode)
    assert decision.rule == "epsilon_per_run"
    assert decision.offer == Offer(epsilon_quarters=10)


def test_an_offer_is_the_most_that_the_rules_allow(judged):
    decision = judged(LESS, ANY_TIME)
    plan = read_plan((PLAN.replace(*EPOCHS) + RANGES).encode())
    more = replace(decision.offer, epsilon_quarters=decision.offer.epsilon_quarters + 1)
    assert run_epsilon(plan_with(plan, more)) > 3.1
    assert decision.offer.epsilon_quarters / QUARTERS <= 3.1
