"""What a silo of an older protocol is shown, and what the round does without it."""

import asyncio
import contextlib
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from chorale.v1 import round_pb2 as pb
from federation.errors import VersionMismatchError
from federation.plan.read import read_plan
from federation.version import NEWEST_PROTOCOL, OFFERS, UNANNOUNCED, Version, this_version
from server.context import Liveness
from server.errors import WrongRoundError
from server.members.peer import Peer, Role
from server.rpc.access import _PEER
from server.rpc.rounds import RoundService
from server.rpc.versions import TOO_OLD, SiloVersions, plan_protocol, require_protocol
from tests.kit.processes.constant_federation import plan_toml

PLAIN = plan_toml(mode="silo", noise=1.0)
NEWER = PLAIN.replace("[evolve]\n", '[evolve]\nlearning_rate_schedule = "constant"\n')
COSINE = NEWER.replace('schedule = "constant"', 'schedule = "cosine"')
SILO = "hospital-a"


class Cohorts:
    def __init__(self, member=True):
        self.refused, self._member = [], member

    def refuse(self, silo_id, *, place, reason):
        if not self._member:
            raise WrongRoundError("not in the roster")
        self.refused.append((silo_id, place, reason))


class World:
    """A service over a store that holds one plan, one roster and one page of records."""

    def __init__(self, *, plan=PLAIN, approvals=(), kinds=("aggregated",), training=True):
        self.cohorts = Cohorts()
        roster = SimpleNamespace(roster=SimpleNamespace(epoch=7), approvals=approvals)
        records = [SimpleNamespace(kind=kind) for kind in kinds]
        driver = SimpleNamespace(
            training=object() if training else None, next_place=(1, 0), cohorts=self.cohorts
        )
        store = SimpleNamespace(
            rosters=SimpleNamespace(current=lambda: roster, before=lambda *_a, **_k: ()),
            runs=SimpleNamespace(by_plan=lambda _: SimpleNamespace(plan=plan.encode())),
            records=SimpleNamespace(page=lambda *_: records),
        )
        context = SimpleNamespace(store=store, liveness=Liveness())
        preflights = SimpleNamespace(plan=lambda _: None)
        self.conductor = SimpleNamespace(context=context, driver=driver, preflights=preflights)
        self.service = RoundService(self.conductor)

    def plan(self):
        return asyncio.run(self.service.GetPlan(pb.GetPlanRequest(plan_sha256=bytes(32)), None))


@contextmanager
def calling(version):
    token = _PEER.set(
        Peer(role=Role.SILO, name=SILO, certificate_sha256=bytes(32), version=version)
    )
    try:
        yield
    finally:
        _PEER.reset(token)


def test_a_plan_needs_what_it_names_even_where_it_is_the_default():
    assert plan_protocol(read_plan(PLAIN.encode())) == 1
    assert COSINE != NEWER != PLAIN
    assert plan_protocol(read_plan(NEWER.encode())) == 2
    assert plan_protocol(read_plan(COSINE.encode())) == 2
    told = PLAIN.replace("accept_low", "exact_figures = false\naccept_low")
    assert plan_protocol(read_plan(told.encode())) == 2
    # Without noise an older silo expects figures whatever the plan says.
    quiet = plan_toml(exact_figures=False).replace("exact_figures = false", "")
    assert plan_protocol(read_plan(quiet.encode())) == 2
    for key in ("max_quarantined", "sit_out_after", "sit_out_rounds"):
        named = PLAIN.replace("[rounds]\n", f"[rounds]\n{key} = 3\n")
        assert plan_protocol(read_plan(named.encode())) == 2


def test_a_plan_that_sites_may_move_needs_silos_that_can_answer_so():
    put_off = PLAIN.replace("[rounds]\n", "[rounds]\nstart_after_unix_s = 1800000000\n")
    moved = PLAIN + "[negotiation]\nstart_within_s = 60\n"
    for plan in (put_off, moved):
        assert plan_protocol(read_plan(plan.encode())) == OFFERS
    world = World(plan=moved)
    older = Version(name="0.1.9", oldest=1, newest=OFFERS - 1)
    with calling(older), pytest.raises(VersionMismatchError, match=f"needs protocol {OFFERS}"):
        world.plan()


@pytest.mark.parametrize(
    ("version", "plan", "shown"),
    [
        (UNANNOUNCED, PLAIN, True),
        (UNANNOUNCED, NEWER, False),
        (this_version(), NEWER, True),
        (Version(name="9.0", oldest=2, newest=9), NEWER, True),
    ],
)
def test_a_plan_is_shown_to_who_can_read_it(version, plan, shown):
    world = World(plan=plan)
    with calling(version):
        if shown:
            assert world.plan().plan == plan.encode()
            assert world.cohorts.refused == []
            return
        with pytest.raises(VersionMismatchError, match=rf"upgrade {SILO}: it runs chorale 0\.1\.0"):
            world.plan()
    # Nobody waits for a silo that cannot say no by itself.
    assert world.cohorts.refused == [(SILO, (1, 0), TOO_OLD)]


def test_a_refusal_is_the_same_outside_training_and_for_a_stranger():
    world = World(plan=NEWER, training=False)
    with calling(UNANNOUNCED), pytest.raises(VersionMismatchError):
        world.plan()
    world = World(plan=NEWER)
    world.conductor.driver.cohorts = Cohorts(member=False)
    with calling(UNANNOUNCED), pytest.raises(VersionMismatchError):
        world.plan()
    world.conductor.driver = None
    with calling(UNANNOUNCED), pytest.raises(VersionMismatchError):
        world.plan()


def test_an_approved_roster_and_a_rollback_are_kept_from_who_cannot_follow_them():
    world = World(approvals=(object(),), kinds=("aggregated", "rollback"))
    with calling(UNANNOUNCED):
        with pytest.raises(VersionMismatchError, match="roster epoch 7, which its members"):
            asyncio.run(world.service.GetRoster(pb.GetRosterRequest(), None))
        with pytest.raises(VersionMismatchError, match="went back to an earlier round"):
            asyncio.run(world.service.ListRecords(pb.ListRecordsRequest(), None))
    assert len(world.cohorts.refused) == 2


@pytest.mark.parametrize("needed", range(1, NEWEST_PROTOCOL + 2))
def test_the_text_names_both_versions_and_fits_in_a_hint(needed):
    older = Version(name="0.0.9", oldest=1, newest=1)
    if needed == 1:
        require_protocol(needed, older, silo_id=SILO, what="this plan")
        return
    with pytest.raises(VersionMismatchError) as caught:
        require_protocol(
            needed, older, silo_id=SILO, what="a run that went back to an earlier round"
        )
    text = str(caught.value)
    assert f"needs protocol {needed}" in text
    assert text.isascii()
    assert text.startswith(f"upgrade {SILO}: it runs chorale {older}")
    assert f"the coordinator runs {this_version()}" in text
    assert len(text) <= 200


def test_the_log_says_each_version_once_and_not_more_than_once_a_minute():
    now = [0.0]
    versions = SiloVersions(clock=lambda: now[0])
    later = Version(name="9.0.0", oldest=9, newest=9)

    def lines(*said):
        with capture_logs() as logs:
            for version in said:
                with contextlib.suppress(VersionMismatchError):
                    versions.admit(SILO, version.words)
        return [log["event"] for log in logs]

    assert lines(*[UNANNOUNCED] * 3) == ["silo_is_older"]
    # A silo that says something else with every call does not fill the log with it.
    assert lines(*[later, UNANNOUNCED, this_version()] * 50) == []
    now[0] += 60
    assert lines(*[later] * 3) == ["silo_version_refused"]
    now[0] += 60
    assert lines(this_version(), UNANNOUNCED) == ["silo_version"]
    now[0] += 60
    assert lines(this_version()) == []
    # Who is not a silo yet is judged, and not remembered.
    with capture_logs() as logs, pytest.raises(VersionMismatchError, match="this silo runs 9"):
        versions.admit("", later.words)
    assert logs == []
