"""What is followed is what was judged: a chain under another plan is not adopted."""

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from federation.plan.read import read_plan
from secagg.suite import verification_key
from silo_agent.books.local_store import LocalStore
from silo_agent.daemon.daemon import Daemon
from silo_agent.daemon.gate import Gate
from silo_agent.errors import ChainMismatchError
from silo_agent.follow.published import Published
from silo_agent.line.instruction import RoundClosed
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.document import Policy
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY
from tests.kit.silo_agent.policy_samples import BASE, PLAN, POLICY, SITE, edited, make_task
from tests.kit.silo_agent.published import RUN
from tests.kit.silo_agent.published import Published as Wire

ALLOWED = PLAN.encode()
FORBIDDEN = edited(PLAN, ('["craft", "maze"]', '["webshop"]')).encode()
A, B = (hashlib.sha256(toml).digest() for toml in (ALLOWED, FORBIDDEN))


class Silo:
    """A daemon's guardian and follower over a chain of one record, which is real."""

    def __init__(self, directory, plan_sha256):
        toml = {A: ALLOWED, B: FORBIDDEN}
        wire = Wire(read_plan(toml[plan_sha256]))
        wire.plan = toml.__getitem__
        first = replace(wire.chain[0], plan_sha256=plan_sha256, base_model_sha256=BASE)
        self.record = first.sign(COORDINATOR_KEY)
        wire.chain = [self.record]
        self.handed_over = []
        self.store = LocalStore(directory)
        daemon = self.daemon = Daemon.__new__(Daemon)
        policy = Policy.parse(POLICY.encode())
        daemon.gate = Gate(directory, policy, SiloMetrics())
        daemon.work = SimpleNamespace(site=SITE, call_off=lambda: None)
        daemon.published = Published(
            coordinator=wire,
            identity=None,
            store=self.store,
            max_dimension=10**6,
            adopted=lambda _head, plan: self.handed_over.append(plan.evolve.environments),
            admit=daemon.gate.judge_record,
            adopting=lambda _record: None,
        )
        roster = SimpleNamespace(coordinator_key=verification_key(COORDINATOR_KEY))
        daemon.published._roster = SimpleNamespace(roster=roster)

    def untouched(self):
        return not self.handed_over and self.store.chain_heads() == {}


def test_a_closed_round_of_an_allowed_plan_is_followed_and_of_another_it_is_not(tmp_path):
    silo = Silo(tmp_path, A)
    assert silo.daemon._close_round(RoundClosed(record=silo.record))
    assert silo.handed_over == [("craft", "maze")]
    other = Silo(tmp_path / "other", B)
    assert not other.daemon._close_round(RoundClosed(record=other.record))
    assert other.untouched()


def test_a_record_that_names_an_allowed_plan_does_not_lead_to_a_chain_under_another(tmp_path):
    """The record that closes a round is the coordinator's word; those of the chain are checked."""
    silo = Silo(tmp_path, B)
    with pytest.raises(ChainMismatchError, match="is of plan"):
        silo.daemon._close_round(RoundClosed(record=replace(silo.record, plan_sha256=A)))
    assert silo.untouched()


def test_a_task_under_an_allowed_plan_does_not_lead_to_a_chain_under_another(tmp_path):
    silo = Silo(tmp_path, B)
    task = make_task(run_id=RUN, plan_sha256=A)
    with pytest.raises(ChainMismatchError, match="is of plan"):
        silo.daemon.published.follow(task.run_id, task.plan_sha256)
    assert silo.untouched()
