"""Spans hold metadata only, belong where they should, and cost nothing where nobody asked."""

import random
import subprocess
import sys
import threading

import pytest
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN

import ops.tracing.spans as tracing_module
from federation.errors import TracingError
from ops.tracing.spans import (
    ATTRIBUTES,
    begin,
    carry,
    end,
    follow,
    is_on,
    note,
    read_traceparent,
    spanned,
    traceparent_of,
    tracing,
    use,
)
from server.run.progress import RoundSpans

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ops.tracing.otel import measuring

SECRET = "PATIENT-QUARTZ-77"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.fixture
def exported():
    exporter = InMemorySpanExporter()
    provider = measuring("test", SimpleSpanProcessor(exporter))
    use(provider.get_tracer("test"))
    yield exporter
    use(None)
    follow(INVALID_SPAN)
    provider.shutdown()


def spans(exporter):
    return {span.name: span for span in exporter.get_finished_spans()}


# Off --------------------------------------------------------------------------------------------


def test_it_is_off_and_loads_no_sdk_unless_asked():
    code = (
        "import sys\n"
        "import server.daemon, server.cli.client, silo_agent.daemon.daemon\n"
        "import ops.tracing.spans as t\nfrom opentelemetry.trace import INVALID_SPAN\n"
        "with t.tracing('x', {}):\n"
        "    assert not t.is_on()\n"
        "    assert t.begin('a') is INVALID_SPAN and t.carry(print) is print\n"
        "ours = ('opentelemetry.sdk', 'opentelemetry.exporter', 'opentelemetry.proto')\n"
        "print([m for m in sys.modules if m.startswith(ours)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
    assert not is_on()
    assert traceparent_of(begin("a")) == ""
    note(INVALID_SPAN, anything="goes")
    end(INVALID_SPAN, "x")


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
    assert traceparent_of(read) == PARENT
    there = read.get_span_context()
    assert there.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert there.span_id == 0xB7AD6B7169203331
    assert there.trace_flags.sampled
    assert there.is_remote
    assert not there.trace_state
    unsampled = read_traceparent([("traceparent", PARENT[:-2] + "fe")])
    assert traceparent_of(unsampled) == PARENT[:-2] + "00"


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
    assert read_traceparent(said) is INVALID_SPAN


# Spans ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [SECRET, "OK"])
def test_only_listed_attributes_of_the_listed_form_are_kept(exported, value):
    span = begin("x", round=3, prompt=value, bytes=SECRET, outcome=f"{value}\n", code=True)
    note(span, **{SECRET: 1}, method=b"raw", step=2, attempt=float("inf"))
    end(span)
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
        return end(begin("call"))

    @spanned("outer")
    def outer():
        inner()

    follow(read_traceparent([("traceparent", PARENT)]))
    outer()
    follow(INVALID_SPAN)
    end(begin("alone"))
    found = spans(exported)
    assert f"{found['outer'].parent.span_id:016x}" == "b7ad6b7169203331"
    for child, parent in (("inner", "outer"), ("call", "inner")):
        assert found[child].parent.span_id == found[parent].context.span_id
        assert found[child].context.trace_id == found["outer"].parent.trace_id
    assert found["alone"].parent is None


def test_what_is_global_of_opentelemetry_is_neither_read_nor_set(exported):
    """Another library's span is no parent of ours, and ours is none of another library's."""
    provider = trace.get_tracer_provider()
    theirs = read_traceparent([("traceparent", PARENT)])
    with trace.use_span(theirs):
        with spanned("work"):
            assert trace.get_current_span() is theirs
            end(begin("inner"))
        end(begin("alone"))
    with spanned("ours"):
        assert trace.get_current_span() is INVALID_SPAN
    assert trace.get_tracer_provider() is provider
    found = spans(exported)
    assert found["work"].parent is None
    assert found["alone"].parent is None
    assert found["inner"].parent.span_id == found["work"].context.span_id


def test_a_job_is_carried_to_another_thread(exported):
    follow(read_traceparent([("traceparent", PARENT)]))
    jobs = [carry(lambda: end(begin("carried"))), lambda: end(begin("not carried"))]
    follow(INVALID_SPAN)
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
        span = begin("x", parent=INVALID_SPAN)
        drawn.append((traceparent_of(span), random.random()))  # noqa: S311
        end(span)
    random.setstate(state)
    assert drawn[0][0] != drawn[1][0]
    random.seed(7)
    assert random.random() == drawn[0][1] == drawn[1][1]  # noqa: S311
    random.setstate(state)


def test_a_span_ends_once(exported):
    span = begin("x")
    end(span)
    end(span, "late")
    (done,) = exported.get_finished_spans()
    assert not done.attributes


def test_a_collector_that_is_away_costs_nobody_time(monkeypatch):
    import time

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with tracing("x"):
        for _ in range(10_000):
            end(begin("x", parent=INVALID_SPAN))
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
