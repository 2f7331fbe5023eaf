"""Rounds that ask three of five real silos: the coordinator is killed after its choices, over mTLS.

No failure: a pause. A failure: another cohort than was chosen, a second choice for a round, a silo
that explores, is charged or refuses in a round that does not ask it.
"""

import json
import shutil

import pytest

from dp.ledger.ledger import Ledger
from lab.loopback import LoopbackError
from silo_agent.books.audit import AUDIT_FILE
from silo_agent.books.ledger import LEDGER_FILE
from tests.kit.processes import constant_federation as cf
from tests.kit.processes.deaths_run import run_through_deaths
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("selected_rounds"), pytest.mark.long]

ROUNDS = 6
RANDOM = '[selection]\npolicy = "random"\ncount = 3\n'
WORD = RANDOM + "cohort_may_vary = true\n"
NOISE = {"mode": "silo", "noise": 0.001}
DEATHS = ("1:chosen", "2:signed", "4:sent", "5:chosen", "6:ready:2")


def audited(directory, event):
    lines = (directory / AUDIT_FILE).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record["details"] for record in records if record["event"] == event]


def chosen(loopback):
    """Whom each round asks, by the audit log: each round once."""
    made = audited(loopback.data_dir, "silos_chosen")
    assert [one["round"] for one in made] == list(range(1, ROUNDS + 1))
    assert {one["why"] for one in made} == {"3 drawn of 5"}
    return {one["round"]: tuple(one["silos"]) for one in made}


def rounds_in(loopback, silo_id):
    """The rounds that a silo took part in, by its own list of runs."""
    (run,) = loopback.silo("runs", "--data", str(loopback.silo_dir(silo_id)))["runs"]
    return run["rounds_taken_part"]


def charged(loopback, silo_id, run_id):
    """How many attempts of a run a silo's ledger was charged for."""
    copy = loopback.directory / f"{silo_id}.ledger"
    shutil.copy(loopback.silo_dir(silo_id) / LEDGER_FILE, copy)
    with Ledger.open(copy, delta=1e-5, caps={"silo": 1e9, "task": 1e9, "user": 1e9}) as ledger:
        return ledger.debits_of_run(run_id).releases


def test_three_of_five_are_asked_over_the_death_of_the_coordinator_after_its_choices(tmp_path):
    with cf.federation(tmp_path, silos=cf.FIVE) as loopback:
        plan, adapter = cf.write_run(
            loopback, cf.plan_toml(rounds=ROUNDS, phase_deadline_s=20, extra=RANDOM, **NOISE)
        )
        last, rounds = run_through_deaths(loopback, DEATHS, plan, adapter, silos=cf.FIVE)
        made = chosen(loopback)
        assert len(set(made.values())) > 1
        assert {int(one["round"]): tuple(one["survivors"]) for one in rounds} == made
        assert {one["outcome"] for one in rounds} == {"aggregated"}
        assert {int(one["round"]): tuple(one["chosen"]) for one in rounds} == made
        shown = loopback.chorale(
            "run", "show", last["run"]["run_id"], "--data", str(loopback.data_dir)
        )["releases"][1:]
        assert {one["round"]: tuple(one["chosen"]) for one in shown} == made
        cf.await_adopted(loopback, last["run"]["adapter_sha256"], cf.FIVE)
        for silo_id in cf.FIVE:
            mine = [number for number, silos in made.items() if silo_id in silos]
            assert rounds_in(loopback, silo_id) == len(mine)
            assert charged(loopback, silo_id, last["run"]["run_id"]) == len(mine)
            log = loopback.log(silo_id)
            assert loopback.alive(silo_id)
            assert "refused" not in log
            # Who first asks after a round has ended is told nothing of it.
            assert "not_invited" not in log or len(mine) < ROUNDS
        assert any("not_invited" in loopback.log(silo_id) for silo_id in cf.FIVE)


def ledgers(loopback):
    return {silo: (loopback.silo_dir(silo) / LEDGER_FILE).read_bytes() for silo in cf.FIVE}


def test_without_noise_it_is_refused_until_plan_and_every_site_say_so(tmp_path):
    quiet = {"phase_deadline_s": 20}
    with cf.federation(tmp_path, silos=cf.FIVE) as loopback:
        for silo_id in cf.FIVE:
            loopback.start_silo(silo_id)
        cf.await_heard(loopback, cf.FIVE)
        before = ledgers(loopback)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(extra=RANDOM, **quiet))
        for command in (
            lambda: loopback.chorale("run", "plan", str(plan), "--silos", "5", "--colluding", "1",
                                     "--dimension", str(cf.DIMENSION)),
            lambda: loopback.start_run(plan, adapter, token="silent"),
        ):  # fmt: skip
            with pytest.raises(LoopbackError, match="can be subtracted until single silos show"):
                command()
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=ROUNDS, extra=WORD, **quiet))
        # The sites have not said so: each that is asked refuses, until too few are left to ask.
        last, _ = cf.watch_to_end(loopback, loopback.start_run(plan, adapter, token="refused"))
        assert last["run"]["state"] == "failed"
        refused = "the site's policy does not allow other silos in each round without noise"
        assert refused in last["error"]
        assert ledgers(loopback) == before
        for silo_id in cf.FIVE:
            loopback.kill(silo_id)
        cf.let_cohorts_vary(loopback, cf.FIVE)
        since = {silo_id: len(loopback.log(silo_id)) for silo_id in cf.FIVE}
        for silo_id in cf.FIVE:
            loopback.start_silo(silo_id)
        until(
            lambda: all("coordinator_version" in loopback.log(s)[n:] for s, n in since.items()),
            "every silo called again",
        )
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=2, extra=WORD, **quiet))
        last, rounds = cf.watch_to_end(loopback, loopback.start_run(plan, adapter, token="agreed"))
        assert last["run"]["state"] == "finished", last
        assert [len(one["survivors"]) for one in rounds] == [3, 3]
        assert [one["survivors"] for one in rounds] == [one["chosen"] for one in rounds]
        until(lambda: ledgers(loopback) != before, "somebody was charged")
