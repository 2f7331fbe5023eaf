"""Pre-flights in real processes: a run that one site would not take part in costs nobody anything.

A failure: a silo that explores or a ledger that moves for a run that can release nothing, a refusal
that does not name its site and rule, a round that an asking disturbs.
"""

import json

import pytest

from silo_agent.books.audit import AUDIT_FILE
from silo_agent.books.ledger import LEDGER_FILE
from silo_agent.books.preflights import PREFLIGHTS_FILE
from tests.kit.processes import constant_federation as cf

pytestmark = pytest.mark.xdist_group("preflight")

SMALL = cf.SILOS[3]
NOISY = {"mode": "silo", "noise": 4.0, "epsilon_cap": 1e6}


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    """Four silos, of which one allows a single round."""
    environment = {"CHORALE_WITHOUT_PREFLIGHT": "0", "CHORALE_AWAIT_SILOS": "0"}
    directory = tmp_path_factory.mktemp("preflight")
    with cf.federation(directory, environment=environment) as made:
        small = cf.policy_toml().replace("max_rounds = 100", "max_rounds = 1")
        cf.configure(made, SMALL, policy=small)
        for silo in cf.SILOS:
            made.start_silo(silo)
        cf.await_heard(made)
        yield made


def written(loopback, **options):
    """A plan whose rounds need everybody, and an adapter."""
    return cf.write_run(loopback, cf.plan_toml(**options).replace("quorum = 3", "quorum = 4"))


def live(loopback, plan, adapter, token):
    return cf.asks(
        loopback, "run", "plan", plan, "--adapter", adapter, "--live", "--submit-token", token
    )


def verdicts(envelope):
    found = envelope["data"].get("live", envelope["data"])
    return {one["silo_id"]: one["verdict"] for one in found["silos"]}


def ledgers(loopback):
    return {silo: (loopback.silo_dir(silo) / LEDGER_FILE).read_bytes() for silo in cf.SILOS}


def events(directory):
    lines = (directory / AUDIT_FILE).read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def test_one_policy_too_small_stops_a_run_before_anybody_works_or_pays(loopback):
    plan, adapter = written(loopback, rounds=2, **NOISY)
    before = ledgers(loopback)
    start = ("run", "start", plan, "--adapter", adapter, "--submit-token", "first")
    code, envelope = cf.asks(loopback, *start)
    assert (code, envelope["error_code"]) == (4, "preflight_refused"), envelope
    assert "a round opens with 4 ready silos, and 3 of 4 accept" in envelope["message"]
    reason = "the site's policy does not allow so many rounds"
    assert f"{SMALL}: {reason} (rule rounds)" in envelope["message"]
    assert verdicts(envelope) == {**dict.fromkeys(cf.SILOS, "accept"), SMALL: "refuse"}
    _, listed = cf.asks(loopback, "run", "list")
    assert listed["data"]["runs"] == []
    assert ledgers(loopback) == before
    for silo in cf.SILOS:
        said = events(loopback.silo_dir(silo))
        assert said.count("preflight_answered") == 1
        assert not {"task_accepted", "task_refused", "attempt_charged"} & set(said)
        kept = loopback.silo_dir(silo) / PREFLIGHTS_FILE
        assert kept.stat().st_mode & 0o777 == 0o600
    said = events(loopback.data_dir)
    assert (said.count("preflight_asked"), said.count("preflight_answered")) == (1, 4)

    # The operator allows more. The question that was answered stays answered; a new one is new.
    loopback.kill(SMALL)
    cf.configure(loopback, SMALL)
    loopback.start_silo(SMALL)
    code, envelope = live(loopback, plan, adapter, "first")
    assert (code, verdicts(envelope)[SMALL]) == (4, "refuse"), envelope
    code, envelope = live(loopback, plan, adapter, "second")
    assert (code, set(verdicts(envelope).values())) == (0, {"accept"}), envelope
    assert ledgers(loopback) == before
    run = loopback.start_run(plan, adapter, token="second")
    last, rounds = cf.watch_to_end(loopback, run)
    assert last["run"]["state"] == "finished", last
    assert [one["survivors"] for one in rounds] == [list(cf.SILOS)] * 2


def test_asking_disturbs_no_round(loopback):
    plan, adapter = written(loopback, rounds=4, ready_after_s=1)
    run = loopback.start_run(plan, adapter, token="goes-on")
    for number, _ in zip(range(2), loopback.watch(run), strict=False):
        code, envelope = live(loopback, plan, adapter, f"meanwhile-{number}")
        assert (code, set(verdicts(envelope).values())) == (0, {"accept"}), envelope
    last, rounds = cf.watch_to_end(loopback, run)
    assert last["run"]["state"] == "finished", last
    assert [(one["outcome"], one["attempt"]) for one in rounds] == [("aggregated", 1)] * 4
