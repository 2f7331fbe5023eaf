"""Spans over real connections: one trace for a round, each process's spans at its own collector."""

import re
import time
from types import SimpleNamespace

import grpc
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN

from chorale.v1 import admin_pb2, admin_pb2_grpc, round_pb2, round_pb2_grpc
from lab.loopback import LoopbackFederation
from ops.tracing.otel import measuring
from ops.tracing.spans import ATTRIBUTES, follow, read_traceparent, use
from server.cli.client import connect
from silo_agent.errors import TransportError
from silo_agent.identity.join import join
from silo_agent.line.transport import Coordinator as Line
from tests.kit.otlp_collector import Collector
from tests.kit.processes import constant_federation as cf
from tests.kit.processes.server_harness import Coordinator

pytestmark = pytest.mark.xdist_group("tracing")

SILO = "hospital-a"
ALLOWED = {key for key, _ in ATTRIBUTES.values()}
RESOURCE = {
    "service.instance.id",
    "service.name",
    "service.version",
    "telemetry.sdk.language",
    "telemetry.sdk.name",
    "telemetry.sdk.version",
}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# One process -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    running = Coordinator(tmp_path_factory.mktemp("tracing"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def identity(coordinator, tmp_path_factory):
    return join(coordinator.invite(SILO), tmp_path_factory.mktemp("silo"))


@pytest.fixture
def exported():
    exporter = InMemorySpanExporter()
    provider = measuring("test", SimpleSpanProcessor(exporter))
    use(provider.get_tracer("test"))
    yield exporter
    use(None)
    follow(INVALID_SPAN)
    provider.shutdown()


@pytest.fixture
def line(coordinator, identity, exported):
    made = Line(
        address=coordinator.config.dial_coordinator,
        credentials=identity.channel_credentials(),
        patience_s=5.0,
    )
    yield made
    made.close()


def pairs(exporter, method):
    """The client's and the server's spans of a method, each client's with its server's."""
    found = []
    for _ in range(100):
        done = [span for span in exporter.get_finished_spans() if span.name.endswith(method)]
        clients = [span for span in done if span.kind.name == "CLIENT"]
        servers = {span.parent.span_id: span for span in done if span.kind.name == "SERVER"}
        found = [(one, servers.get(one.context.span_id)) for one in clients]
        if found and all(server for _, server in found):
            break
        time.sleep(0.02)
    return found


def test_a_call_is_two_spans_of_one_trace(line, exported):
    follow(read_traceparent([("traceparent", PARENT)]))
    line.ping()
    ((client, server),) = pairs(exported, "/Poll")
    assert f"{client.context.trace_id:032x}" == PARENT.split("-")[1]
    assert server.context.trace_id == client.context.trace_id
    for span in (client, server):
        assert span.attributes["rpc.service"] == "chorale.v1.RoundService"
        assert span.attributes["rpc.method"] == "Poll"
        assert span.attributes["rpc.grpc.status_code"] == 0
        assert set(span.attributes) <= ALLOWED
    assert client.attributes["chorale.response_bytes"] > 0


def test_a_refused_call_says_how_it_ended_and_nothing_of_why(line, exported):
    with pytest.raises(TransportError):
        line.roster()
    client, server = pairs(exported, "/GetRoster")[0]
    assert client.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INTERNAL.value[0]
    assert server.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INTERNAL.value[0]
    assert (client.status.status_code.name, client.attributes["error.type"]) == (
        "ERROR",
        "INTERNAL",
    )
    assert "secret" not in client.to_json() + server.to_json()


def test_a_stream_is_a_span_with_its_bytes(identity, coordinator, exported, line):
    stub = line._line.stub(round_pb2_grpc.RoundServiceStub)
    parts = [
        round_pb2.UploadMaskedInputRequest(chunk=round_pb2.UploadChunk(content=bytes(n)))
        for n in (1000, 2000)
    ]
    with pytest.raises(grpc.RpcError):
        stub.UploadMaskedInput(iter(parts), timeout=60)
    ((client, server),) = pairs(exported, "/UploadMaskedInput")
    assert client.attributes["chorale.request_bytes"] >= 3000
    assert server.attributes["error.type"] == "refused"
    with connect(coordinator.data_dir) as admin:
        for _ in admin.WatchRun(admin_pb2.WatchRunRequest(run_id="run-1"), timeout=60):
            pass
    ((client, server),) = pairs(exported, "/WatchRun")
    assert client.attributes["rpc.grpc.status_code"] == 0
    assert server.attributes["chorale.response_bytes"] > 0


@pytest.mark.parametrize(
    "words",
    [
        [("traceparent", "00-secret")],
        [("traceparent", PARENT.replace("00-0af", "ff-0af"))],
        [("traceparent", PARENT.upper())],
    ],
)
def test_a_malformed_traceparent_is_as_none(coordinator, exported, words):
    use(None)
    with coordinator.admin_channel() as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        use(measuring("server", SimpleSpanProcessor(exported)).get_tracer("server"))
        stub.ListSilos(
            admin_pb2.ListSilosRequest(),
            timeout=60,
            metadata=[*words, ("tracestate", "secret=1"), ("baggage", "secret=1")],
        )
    for _ in range(100):
        if exported.get_finished_spans():
            break
        time.sleep(0.02)
    (span,) = exported.get_finished_spans()
    assert span.parent is None
    assert "secret" not in span.to_json()


# Processes --------------------------------------------------------------------------------------


class Traced(LoopbackFederation):
    """Every party with a collector of its own."""

    collectors: dict[str, Collector]

    def python(self, party):
        words = [f"{k}={v}" for k, v in self.collectors[kind_of(party)].environment.items()]
        return ("env", *words, *super().python(party))


def kind_of(party):
    return "coordinator" if party == "coordinator" else "silo"


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    silos = cf.SILOS[:3]
    with Collector() as theirs, Collector() as ours:
        collectors = {"coordinator": theirs, "silo": ours}
        template = cf._template(silos)
        with Traced(directory=tmp_path_factory.mktemp("traced")) as loopback:
            loopback.collectors = collectors
            cf._copy(template, loopback)
            loopback.start_coordinator()
            for silo in silos:
                loopback.start_silo(silo)
            cf.await_heard(loopback, silos)
            plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=2))
            run_id = loopback.start_run(plan, adapter, token="traced")
            last, rounds = cf.watch_to_end(loopback, run_id)
            assert [done["outcome"] for done in rounds] == ["aggregated"] * 2, last
            theirs.until(lambda spans: sum(span.name == "round" for span in spans) == 2)
            ours.until(lambda spans: sum(span.name == "upload" for span in spans) == 6)
            loopback.stop()
            logs = {name: loopback.log(name) for name in ("coordinator", *silos)}
        yield SimpleNamespace(
            coordinator=theirs.spans,
            silos=ours.spans,
            logs=logs,
            run_id=run_id,
            names=silos,
            raw={"coordinator": b"".join(theirs.bodies), "silo": b"".join(ours.bodies)},
        )


@pytest.mark.long
def test_a_round_is_one_trace_over_coordinator_and_silos(story):
    rounds = [span for span in story.coordinator if span.name == "round"]
    assert [span.attributes["chorale.round"] for span in rounds] == [1, 2]
    assert all(span.attributes["chorale.outcome"] == "aggregated" for span in rounds)
    assert not any(span.parent_id for span in rounds)
    for done in rounds:
        phases = [
            span.name
            for span in story.coordinator
            if span.parent_id == done.span_id and span.name.startswith("phase ")
        ]
        assert phases[0] == "phase training"
        assert len(phases) == 7, phases
        mine = [span for span in story.silos if span.trace_id == done.trace_id]
        counted = {
            name: sum(span.name == name for span in mine)
            for name in ("local_work", "mask", "upload")
        }
        assert counted == {"local_work": 3, "mask": 3, "upload": 3}
        for span in mine:
            if span.name in {"local_work", "mask", "upload"}:
                assert span.parent_id == done.span_id


@pytest.mark.long
def test_a_silos_call_is_the_parent_of_what_the_coordinator_served(story):
    calls = {span.span_id: span for span in story.silos if span.kind == 3}
    served = [span for span in story.coordinator if span.kind == 2 and span.parent_id in calls]
    assert {span.attributes["rpc.method"] for span in served} >= {
        "Poll",
        "ReportReady",
        "AdvertiseKeys",
        "ShareKeys",
        "UploadMaskedInput",
        "CheckConsistency",
        "Unmask",
    }
    for span in served:
        assert span.name == calls[span.parent_id].name
        assert span.trace_id == calls[span.parent_id].trace_id
    uploads = [span for span in story.silos if span.name == "upload"]
    inside = [s for s in calls.values() if s.parent_id in {span.span_id for span in uploads}]
    assert {span.attributes["rpc.method"] for span in inside} >= {"UploadMaskedInput"}


@pytest.mark.long
def test_a_silos_spans_stay_with_the_silo(story):
    assert {span.service for span in story.coordinator} == {"chorale-coordinator", "chorale"}
    assert {span.service for span in story.silos} == {"chorale-silo"}
    local = {"local_work", "mask", "upload", "explore", "train", "evaluate", "gradients"}
    assert not local & {span.name for span in story.coordinator}
    assert {span.span_id for span in story.silos}.isdisjoint(
        span.span_id for span in story.coordinator
    )


@pytest.mark.long
def test_an_admins_call_is_in_one_trace_with_what_served_it(story):
    clients = {
        span.span_id: span
        for span in story.coordinator
        if span.service == "chorale" and span.kind == 3
    }
    served = [span for span in story.coordinator if span.parent_id in clients]
    assert {span.attributes["rpc.method"] for span in served} >= {"StartRun", "WatchRun"}


@pytest.mark.long
def test_spans_hold_metadata_only(story):
    for span in (*story.coordinator, *story.silos):
        assert set(span.attributes) <= ALLOWED, span
        assert set(span.resource) == RESOURCE
        assert (span.events, span.message) == (0, "")
        assert re.fullmatch(r"[a-z_ ]+|chorale\.v1\.\w+/\w+", span.name), span.name
    for name in (*story.names, story.run_id):
        assert not any(name.encode() in body for body in story.raw.values()), name


@pytest.mark.long
def test_nothing_was_redacted_or_complained_about(story):
    for name, log in story.logs.items():
        assert "redacted" not in log, (name, log)
        assert "foreign_log" not in log, (name, log)
