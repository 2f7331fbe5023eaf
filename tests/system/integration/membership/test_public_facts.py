"""Public facts over mutual TLS: from the file of an operator to the admin's list of silos.

Real transport and services in one process first; then real daemons, one of which publishes in a run
of all.
"""

from __future__ import annotations

import json

import grpc
import pytest
from typer.testing import CliRunner

from chorale.v1 import membership_pb2, membership_pb2_grpc
from federation.membership.facts import Availability, FreeGpu, SignedFacts, SiloFacts
from federation.wire import signed_facts_to_proto
from server.cli.silo import app as chorale_silo_list
from server.context import FACTS_FOR_S
from silo_agent.cli.main import app as chorale_silo
from silo_agent.daemon.facts import EVERY_S, FactsDesk
from silo_agent.identity.join import join
from silo_agent.line.transport import Coordinator as Line
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.document import Policy
from tests.kit.processes import constant_federation as cf
from tests.kit.processes.server_harness import Coordinator
from tests.kit.waiting import until

pytestmark = pytest.mark.xdist_group("public_facts")

LISTED = '[facts]\npublish = ["availability", "queue", "free_gpu", "budget_left"]\n'


@pytest.fixture
def coordinator(tmp_path):
    running = Coordinator(tmp_path / "coordinator")
    yield running
    running.close()


class Silo:
    def __init__(self, coordinator, directory, silo_id="hospital-a"):
        self.coordinator, self.directory = coordinator, directory
        self.identity = join(coordinator.invite(silo_id), directory)
        (directory / "silo.toml").write_text('environments = ["craft"]')
        (directory / "policy.toml").write_text(LISTED)
        self.metrics, self.after_s = SiloMetrics(), 0.0
        self.line = Line(
            address=coordinator.config.dial_coordinator,
            credentials=self.identity.channel_credentials(),
            patience_s=5.0,
        )
        self.desk = FactsDesk(
            data_dir=directory,
            identity=self.identity,
            policy=Policy.load(directory / "policy.toml"),
            ledger_of=lambda: None,
            coordinator=self.line,
            metrics=self.metrics,
            clock=coordinator.clock,
            monotonic=lambda: self.after_s,
        )

    def publish(self, after_s=EVERY_S):
        """A poll later; both clocks move."""
        self.after_s += after_s
        self.coordinator.clock.offset_s += after_s
        self.desk.publish(attempt_open=False)

    def errors(self):
        return self.metrics.registry.get_sample_value(
            "chorale_silo_errors_total", {"kind": "TransportError"}
        )


@pytest.fixture
def silo(coordinator, tmp_path):
    made = Silo(coordinator, tmp_path / "silo")
    yield made
    made.line.close()


def run(app, *arguments):
    done = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    envelope = json.loads(done.stdout)
    assert (envelope["status"] == "ok") == (done.exit_code == 0), done.stderr
    return envelope


def listed(coordinator, silo_id="hospital-a"):
    silos = run(chorale_silo_list, "list", "--data", coordinator.data_dir)["data"]["silos"]
    (found,) = [one["facts"] for one in silos if one["silo_id"] == silo_id]
    return found


def test_what_an_operator_says_is_in_the_admins_list_for_a_quarter_of_an_hour(coordinator, silo):
    assert listed(coordinator) is None
    said = run(chorale_silo, "facts", "set", "--queue", 3, "--free-gpu", "most", "--for", "2h",
               "--data", silo.directory)  # fmt: skip
    assert said["data"]["queue"]["value"] == 3
    silo.publish()
    found = {"availability": "up", "queue": 3, "free_gpu": "most", "budget_left": None,
             "earliest_start_unix_s": None}  # fmt: skip
    assert listed(coordinator) == found
    text = CliRunner().invoke(chorale_silo_list, ["list", "--data", str(coordinator.data_dir)])
    assert "[up, queue 3, free gpu most]" in text.stdout
    run(chorale_silo, "facts", "clear", "--data", silo.directory)
    silo.publish()
    assert listed(coordinator) == {**found, "queue": None, "free_gpu": None}
    coordinator.clock.offset_s += FACTS_FOR_S
    assert listed(coordinator) is None
    assert coordinator.counted(
        "grpc_server_handled_total",
        grpc_type="unary_unary",
        grpc_service="chorale.v1.MembershipService",
        grpc_method="PublishFacts",
        grpc_code="OK",
    ) == 2.0  # fmt: skip


def test_the_operator_sees_what_is_published_and_what_is_not(silo):
    run(chorale_silo, "facts", "set", "--queue", 1000, "--data", silo.directory)
    shown = run(chorale_silo, "facts", "--data", silo.directory)["data"]
    assert shown["publishes"] == ["availability", "queue", "free_gpu", "budget_left"]
    by_name = {fact["fact"]: fact for fact in shown["facts"]}
    assert (by_name["queue"]["value"], by_name["free_gpu"]["value"]) == (1000, None)
    assert not by_name["earliest_start_unix_s"]["published"]
    text = CliRunner().invoke(chorale_silo, ["facts", "--data", str(silo.directory)]).stdout
    published, _, kept = text.partition("not published:")
    assert "queue" in published
    assert "earliest_start_unix_s" in kept
    for wrong in (["--queue", 1001], ["--free-gpu", "plenty"], ["--queue", 1, "--for", "32d"], []):
        assert run(chorale_silo, "facts", "set", *wrong, "--data", silo.directory)["error_code"]
    assert run(chorale_silo, "facts", "--data", silo.directory)["data"] == shown


def test_a_silo_cannot_speak_for_another_one_nor_again(coordinator, silo, tmp_path):
    silo.publish()
    before = listed(coordinator)
    other = Silo(coordinator, tmp_path / "other", "hospital-b")
    channel = grpc.secure_channel(
        coordinator.config.dial_coordinator, other.identity.channel_credentials()
    )
    publish = membership_pb2_grpc.MembershipServiceStub(channel).PublishFacts
    busy = SignedFacts(
        silo_id="hospital-a",
        federation=silo.identity.federation,
        issued_unix_s=int(coordinator.clock()),
        facts=SiloFacts(availability=Availability.DOWN, free_gpu=FreeGpu.NONE),
    )

    def refused(request):
        with pytest.raises(grpc.RpcError) as caught:
            publish(request, timeout=60)
        return dict(caught.value.trailing_metadata())["chorale-reason"]

    # Recorded from its owner, and made up under its name.
    for signed in (busy.sign(silo.identity.signing_key), busy.sign(other.identity.signing_key)):
        assert refused(signed_facts_to_proto(signed)) == "facts_refused"
    unknown = signed_facts_to_proto(busy)
    unknown.facts.availability = 77
    assert refused(unknown) == "facts_refused"
    assert refused(membership_pb2.PublishFactsRequest()) == "facts_refused"
    assert (listed(coordinator), listed(coordinator, "hospital-b")) == (before, None)
    own = signed_facts_to_proto(
        SignedFacts(
            silo_id="hospital-b",
            federation=other.identity.federation,
            issued_unix_s=int(coordinator.clock()),
            facts=busy.facts,
        ).sign(other.identity.signing_key)
    )
    publish(own, timeout=60)
    assert refused(own) == "facts_too_often"
    coordinator.clock.offset_s += 60
    assert refused(own) == "facts_stale"
    assert coordinator.counted("chorale_rejected_messages_total", reason="facts_refused") == 4.0
    channel.close()
    other.line.close()


def test_a_restarted_coordinator_is_told_again(coordinator, silo):
    silo.publish()
    coordinator.restart()
    assert listed(coordinator) is None
    silo.publish(EVERY_S)
    silo.publish(EVERY_S)
    assert listed(coordinator)["availability"] == "up"


@pytest.mark.long
def test_a_daemon_publishes_at_its_start_and_at_a_change_and_its_rounds_go_on(tmp_path):
    with cf.federation(tmp_path) as loopback:
        at = ("--data", str(loopback.silo_dir("silo-a")))
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=2, mode="silo", noise=4.0))
        # As much budget as the run can cost at most, so that rounds show in what is left.
        cost = loopback.silo("policy", "check", str(plan), *at)["epsilons"]["silo"]["epsilon"]
        (loopback.silo_dir("silo-a") / "policy.toml").write_text(
            cf.policy_toml(epsilon_cap=1.01 * cost) + LISTED
        )
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)

        def said():
            silos = loopback.chorale("silo", "list", "--data", str(loopback.data_dir))["silos"]
            return {one["silo_id"]: one["facts"] for one in silos}

        def by_silo_a(**words):
            return lambda: words.items() <= (said()["silo-a"] or {}).items()

        whole = "over_three_quarters"
        until(by_silo_a(availability="up", budget_left=whole), "it says that it is up")
        cf.await_heard(loopback)
        loopback.silo("facts", "set", "--queue", "2", "--free-gpu", "some", *at)
        last, _ = cf.watch_to_end(loopback, loopback.start_run(plan, adapter, token="facts"))
        assert last["run"]["state"] == "finished"
        shown = {one["fact"]: one["value"] for one in loopback.silo("facts", *at)["facts"]}
        left = shown["budget_left"]
        assert left != whole
        until(by_silo_a(queue=2, free_gpu="some", budget_left=left), "both changes are told")
        assert [said()[silo_id] for silo_id in cf.SILOS[1:]] == [None] * 3
        assert "facts_not_published" not in loopback.log("silo-a")
