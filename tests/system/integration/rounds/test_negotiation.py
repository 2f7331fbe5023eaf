"""Sites negotiate in real processes: one counter-offer is taken, one other sites refuse.

What is taken runs, masked, with an advisor that helps, lies and dies.

A failure: an offer that a site did not opt into, an amended plan that some site's policy refuses
and that is written all the same, a ledger that moves because of an offer, a run of an amended plan
that charges what the plan before it would have, an advisor that moves what was agreed.
"""

import json
from datetime import UTC, datetime, timedelta

import pytest

from federation.plan.negotiation import run_epsilon
from federation.plan.read import read_plan
from silo_agent.books.audit import AUDIT_FILE
from silo_agent.books.ledger import LEDGER_FILE
from tests.kit.processes import constant_federation as cf
from tests.kit.processes.advisor_endpoint import Advisor, said

pytestmark = [pytest.mark.xdist_group("negotiation"), pytest.mark.long]

A, B, C, D = cf.SILOS
RANGES = """
[negotiation]
least_local_epochs = 1
start_within_s = 10800
least_epsilon = 0.5
"""
ADVISED = """
[selection]
policy = "advised"
count = 4
[selection.ranges]
ready_deadline_s = [40, 60]
[selection.advice]
seconds = 4
"""
ROUNDS = 4
OFFERS = "\n[offers]\nlocal_epochs = true\nstart = true\nepsilon = true\n"


def hours(begin_min, end_min):
    """A daily window around now."""
    begin, end = (datetime.now(UTC) + timedelta(minutes=each) for each in (begin_min, end_min))
    return f'\n[schedule]\nhours_utc = "{begin:%H:%M}-{end:%H:%M}"\n'


def policy(*, epsilon=None, epochs=None, schedule="", offers=OFFERS):
    text = cf.policy_toml()
    if epsilon is not None:
        text = text.replace('"unlimited"', str(epsilon))
    if epochs is not None:
        text += f"max_local_epochs = {epochs}\n"
    return text + schedule + offers


def plan_toml():
    text = cf.plan_toml(
        rounds=ROUNDS, mode="silo", noise=4.0, epsilon_cap=1e6, extra=RANGES + ADVISED
    )
    text = text.replace("quorum = 3", "quorum = 4")
    return text.replace("episodes_per_round = 64", "episodes_per_round = 64\nlocal_epochs = 3")


@pytest.fixture(scope="module")
def advisor():
    ways = {
        1: said(count=4, ready_deadline_s=45),
        2: said(count=4, local_epochs=3, reason="the sites meant three"),
    }
    return Advisor(ways, otherwise=said(count=4), last=3)


@pytest.fixture(scope="module")
def loopback(tmp_path_factory, advisor):
    """Four sites, each with limits of its own; two of them are below what the plan asks for."""
    directory = tmp_path_factory.mktemp("negotiation")
    environment = advisor.environment(directory) | {
        "CHORALE_WITHOUT_PREFLIGHT": "0",
        "CHORALE_AWAIT_SILOS": "0",
    }
    epsilon = run_epsilon(read_plan(plan_toml().encode()))
    with cf.federation(directory / "federation", environment=environment) as made:
        cf.configure(made, B, policy=policy(schedule=hours(-60, 60)))
        cf.configure(made, C, policy=policy(epsilon=epsilon - 0.3))
        cf.configure(made, D, policy=policy(epochs=2))
        for silo in cf.SILOS:
            made.start_silo(silo)
        cf.await_heard(made)
        yield made


def negotiate(loopback, plan, out, token):
    return cf.asks(
        loopback, "run", "ask", plan, "--negotiate", "--out", out, "--submit-token", token
    )


def verdicts(figures):
    return {one["silo_id"]: one["verdict"] for one in figures["silos"]}


def ledgers(loopback):
    return {silo: (loopback.silo_dir(silo) / LEDGER_FILE).read_bytes() for silo in cf.SILOS}


def noted(directory, event):
    lines = map(json.loads, (directory / AUDIT_FILE).read_text().splitlines())
    return [line["details"] for line in lines if line["event"] == event]


def test_counter_offers_are_taken_where_all_accept_and_refused_where_one_does_not(loopback):
    plan, adapter = cf.write_run(loopback, plan_toml())
    before, out = ledgers(loopback), loopback.directory / "amended.toml"
    # As it is the plan is refused, and the sites say under which terms it would not be.
    code, envelope = cf.asks(loopback, "run", "ask", plan, "--submit-token", "bare")
    assert (code, envelope["error_code"]) == (4, "preflight_refused"), envelope
    assert verdicts(envelope["data"]) == {A: "accept", B: "accept", C: "offer", D: "offer"}
    assert not out.exists()

    code, envelope = negotiate(loopback, plan, out, "first")
    assert code == 0, envelope
    data = envelope["data"]
    offers = {one["silo_id"]: one["offer"] for one in data["before"]["silos"] if one["offer"]}
    assert set(offers) == {C, D}
    assert offers[D] == {"local_epochs": 2}
    assert verdicts(data) == dict.fromkeys(cf.SILOS, "accept")
    amended = read_plan(out.read_bytes())
    assert amended.evolve.local_epochs == 2
    assert run_epsilon(amended) <= offers[C]["epsilon_quarters"] / 4
    assert run_epsilon(amended) < run_epsilon(read_plan(plan_toml().encode())) - 0.3
    assert ledgers(loopback) == before
    (told,) = noted(loopback.data_dir, "plan_amended")
    assert told["amended"] == data["amended_sha256"]
    said = [one["verdict"] for one in noted(loopback.silo_dir(D), "preflight_answered")]
    assert said == ["offer", "offer", "accept"]

    # The amended plan is a plan like any other, and each site is charged for its noise.
    run = loopback.start_run(out, adapter, token="first")
    rounds, last = [], None
    for last in loopback.watch(run):
        rounds += last.get("finished", ())
    assert last["run"]["state"] == "finished", last
    assert [one["survivors"] for one in rounds] == [list(cf.SILOS)] * ROUNDS
    # What the advisor may not say is refused, and what it does not say is what was agreed.
    helped, lied, _, gone = (one["chosen_why"] for one in rounds)
    assert helped.startswith("advised:")
    assert lied.startswith("no advice (refused: local_epochs")
    assert gone.startswith("no advice (endpoint: unreachable)")
    for number, deadline_s in ((1, 45), (4, None)):
        told = cf.asks(loopback, "audit", "explain", run, str(number))[1]["data"]
        assert told["replay_equal"] is True
        assert told["choice"]["local_epochs"] is None
        assert told["choice"]["ready_deadline_s"] == deadline_s
    noise = amended.privacy.noise_multiplier
    ledger = (loopback.silo_dir(A) / LEDGER_FILE).read_bytes()
    assert noise > 4.0
    assert f'"z":{noise!r}'.encode() in ledger.replace(b" ", b"")

    # One site offers to begin when its hours do; another one's are over by then.
    loopback.kill(D)
    cf.configure(loopback, D, policy=policy(schedule=hours(90, 150)))
    loopback.start_silo(D)
    cf.await_heard(loopback)
    later = loopback.directory / "later.toml"
    code, envelope = negotiate(loopback, out, later, "second")
    assert (code, envelope["error_code"]) == (4, "preflight_refused"), envelope
    data = envelope["data"]
    assert verdicts(data["before"]) == {A: "accept", B: "accept", C: "accept", D: "offer"}
    (offer,) = (one["offer"] for one in data["before"]["silos"] if one["offer"])
    (move,) = data["moves"]
    assert move["key"] == "rounds.start_after_unix_s"
    assert move["after"] == str(offer["start_after_unix_s"])
    assert verdicts(data)[B] != "accept"
    assert verdicts(data)[D] == "accept"
    assert "the site's policy does not allow a round at this time" in envelope["message"]
    # Asked twice, and not once more; what two rounds do not settle is not written.
    assert len(noted(loopback.data_dir, "preflight_asked")) == 6
    assert not later.exists()
