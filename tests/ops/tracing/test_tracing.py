"""Spans hold metadata only, belong where they should, and cost nothing where nobody asked."""

import random
import subprocess
import sys
import threading

import pytest

import ops.tracing.spans as tracing_module
from federation.errors import TracingError
from ops.tracing.model import ATTRIBUTES, NO_SPAN, Traceparent, read_traceparent
from ops.tracing.spans import begin, carry, follow, is_on, spanned, tracing, use
from server.run.progress import RoundSpans

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ops.tracing.otel import OtelBackend

SECRET = "PATIENT-QUARTZ-77"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.fixture
def exported():
    exporter = InMemorySpanExporter()
    backend = OtelBackend("test", SimpleSpanProcessor(exporter))
    use(backend)
    yield exporter
    use(None)
    follow(None)
    backend.close()


def spans(exporter):
    return {span.name: span for span in exporter.get_finished_spans()}


# Off --------------------------------------------------------------------------------------------


def test_it_is_off_and_loads_nothing_unless_asked():
    code = (
        "import sys\n"
        "import server.daemon, server.cli.client, silo_agent.daemon.daemon\n"
        "import ops.tracing.spans as t\nfrom ops.tracing.model import NO_SPAN\n"
        "with t.tracing('x', {}):\n"
        "    assert not t.is_on()\n"
        "    assert t.begin('a') is NO_SPAN and t.carry(print) is print\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
    assert not is_on()
    assert begin("a").traceparent == ""
    NO_SPAN.note(anything="goes")
    NO_SPAN.end("x")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "true"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:9"},
    ],
)
def test_what_does_not_ask(environment):
    with tracing("x", environment):
        assert not is_on()


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", tracing_module.ENDPOINTS[0]])
def test_what_asks(name, monkeypatch):
    # Read by the exporter as well, from the process's own environment.
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with tracing("x"):
        assert is_on()
        with tracing("inside"):
            assert is_on()
        assert is_on()
    assert not is_on()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "jaeger"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
    ],
)
def test_what_cannot_be_had_is_an_error(name, value):
    with pytest.raises(TracingError, match=name), tracing("x", {**ENDPOINT, name: value}):
        pass


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ops.tracing.otel", None)
    with (
        pytest.raises(TracingError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT is set.*chorale\[otel\]"),
        tracing("x", ENDPOINT),
    ):
        pass


# What a peer says -------------------------------------------------------------------------------


def test_a_traceparent_is_read_and_written():
    read = read_traceparent([("other", "x"), ("traceparent", PARENT)])
    assert str(read) == PARENT
    assert read == Traceparent(
        trace_id=0x0AF7651916CD43DD8448EB211C80319C, span_id=0xB7AD6B7169203331, sampled=True
    )
    assert not read_traceparent([("traceparent", PARENT[:-2] + "fe")]).sampled


@pytest.mark.parametrize(
    "said",
    [
        [],
        None,
        [("traceparent", PARENT), ("traceparent", PARENT)],
        [("traceparent", PARENT.encode())],
        [("traceparent", PARENT.upper())],
        [("traceparent", PARENT + "-00")],
        [("traceparent", PARENT + "\n")],
        [("traceparent", " " + PARENT)],
        [("traceparent", PARENT[:-1])],
        [("traceparent", "ff" + PARENT[2:])],
        [("traceparent", "01" + PARENT[2:])],
        [("traceparent", f"00-{'0' * 32}-b7ad6b7169203331-01")],
        [("traceparent", f"00-{'a' * 32}-{'0' * 16}-01")],
        [("traceparent", f"00-{'g' * 32}-{'a' * 16}-01")],
        [("traceparent", PARENT.replace("a", "٣", 1))],
        [("traceparent", SECRET)],
        [("traceparent", "x" * 100_000)],
    ],
)
def test_another_form_is_none(said):
    assert read_traceparent(said) is None


# Spans ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [SECRET, "OK"])
def test_only_listed_attributes_of_the_listed_form_are_kept(exported, value):
    span = begin("x", round=3, prompt=value, bytes=SECRET, outcome=f"{value}\n", code=True)
    span.note(**{SECRET: 1}, method=b"raw", step=2, attempt=float("inf"))
    span.end()
    (done,) = exported.get_finished_spans()
    assert dict(done.attributes) == {"chorale.round": 3, "chorale.step": 2}
    assert set(done.attributes) <= {key for key, _ in ATTRIBUTES.values()}


def test_an_error_is_its_type(exported):
    @spanned("work")
    def work():
        raise ValueError(SECRET)

    with pytest.raises(ValueError, match=SECRET):
        work()
    (done,) = exported.get_finished_spans()
    assert dict(done.attributes) == {"error.type": "ValueError"}
    assert not done.events
    assert not done.status.description
    assert done.status.status_code.name == "ERROR"
    assert SECRET not in done.to_json()


def test_calls_inside_belong_to_it_and_the_outermost_to_whom_is_followed(exported):
    @spanned("inner")
    def inner():
        return begin("call").end()

    @spanned("outer")
    def outer():
        inner()

    follow(read_traceparent([("traceparent", PARENT)]))
    outer()
    follow(None)
    begin("alone").end()
    found = spans(exported)
    assert f"{found['outer'].parent.span_id:016x}" == "b7ad6b7169203331"
    for child, parent in (("inner", "outer"), ("call", "inner")):
        assert found[child].parent.span_id == found[parent].context.span_id
        assert found[child].context.trace_id == found["outer"].parent.trace_id
    assert found["alone"].parent is None


def test_a_job_is_carried_to_another_thread(exported):
    follow(read_traceparent([("traceparent", PARENT)]))
    jobs = [carry(lambda: begin("carried").end()), lambda: begin("not carried").end()]
    follow(None)
    for job in jobs:
        thread = threading.Thread(target=job)
        thread.start()
        thread.join()
    found = spans(exported)
    assert f"{found['carried'].context.trace_id:032x}" == PARENT.split("-")[1]
    assert found["not carried"].parent is None


def test_ids_are_not_of_the_generator_that_a_seed_sets(exported):
    """A silo seeds it from a secret; an id that was drawn from it would tell the coordinator."""
    state = random.getstate()
    drawn = []
    for _ in range(2):
        random.seed(7)
        span = begin("x", root=True)
        drawn.append((span.traceparent, random.random()))  # noqa: S311
        span.end()
    random.setstate(state)
    assert drawn[0][0] != drawn[1][0]
    random.seed(7)
    assert random.random() == drawn[0][1] == drawn[1][1]  # noqa: S311
    random.setstate(state)


def test_a_span_ends_once(exported):
    span = begin("x")
    span.end()
    span.end("late")
    (done,) = exported.get_finished_spans()
    assert not done.attributes


def test_a_collector_that_is_away_costs_nobody_time(monkeypatch):
    import time

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with tracing("x"):
        for _ in range(10_000):
            begin("x", root=True).end()
        assert time.monotonic() - began < 60
    assert time.monotonic() - began < 90


# Rounds -----------------------------------------------------------------------------------------


def test_a_release_is_a_trace_with_its_phases(exported):
    run = RoundSpans()
    assert run.traceparent == ""
    run.enter("training", round_number=1, step=0, attempt=1)
    first = run.traceparent
    run.leave()
    run.enter("advertise_keys", round_number=1, step=0, attempt=1)
    # A phase that was never left: its attempt failed.
    run.enter("training", round_number=1, step=0, attempt=2)
    assert run.traceparent == first
    run.end("aggregated")
    assert run.traceparent == ""
    run.enter("training", round_number=2, step=0, attempt=1)
    assert run.traceparent != first
    run.end()
    run.end()
    done = exported.get_finished_spans()
    rounds = [span for span in done if span.name == "round"]
    assert [span.attributes["chorale.round"] for span in rounds] == [1, 2]
    assert rounds[0].attributes["chorale.outcome"] == "aggregated"
    assert "chorale.outcome" not in rounds[1].attributes
    assert {span.parent for span in rounds} == {None}
    phases = [span for span in done if span.name.startswith("phase ")]
    assert len(phases) == 4
    assert {span.context.trace_id for span in phases} == {span.context.trace_id for span in rounds}
    assert phases[0].parent.span_id == rounds[0].context.span_id
