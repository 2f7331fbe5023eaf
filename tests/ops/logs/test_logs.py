"""A line of the log holds what the vocabulary allows, whatever a call gives it."""

import importlib
import io
import json
import logging
import sys
import threading
import warnings

import pytest
import structlog

import server.cli.program
import silo_agent.cli.program
from evolution.errors import EnvironmentFailureError, RolloutWorkerError, TrainingWorkerError
from federation.errors import LogSettingError
from ops.cli.envelope import Answered, Format
from ops.logs.errors import told, traceback_of
from ops.logs.events import Kind
from ops.logs.setup import REDACTED, daemon_logs, failed_writes, logs_on_stderr
from ops.logs.values import Unfit, shown
from ops.tracing.spans import tracing
from silo_agent.errors import LocalStoreError

SECRET = "PATIENT-QUARTZ-77"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines(sink):
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def logged(call, **environment):
    """The records of one call."""
    sink = io.StringIO()
    with logs_on_stderr(environment, stream=sink):
        call(structlog.get_logger())
    assert SECRET not in sink.getvalue()
    return lines(sink)


def one(call, **environment):
    (record,) = logged(call, **environment)
    return record


# Lines ------------------------------------------------------------------------------------------


def test_a_line_is_json_in_order_and_utc():
    record = one(lambda log: log.info("silo_joined", silo="hospital-a"))
    assert list(record) == ["timestamp", "level", "event", "silo"]
    assert record["timestamp"].endswith("Z")
    assert (record["level"], record["event"], record["silo"]) == (
        "info",
        "silo_joined",
        "hospital-a",
    )


def test_a_field_that_is_none_is_left_out():
    assert "check" not in one(lambda log: log.error("instruction_failed", kind="X", check=None))


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("silo_joined", {"prompt": SECRET}),
        # A field of another event.
        ("silo_joined", {"hint": SECRET}),
        ("silo_joined", {"silo": SECRET.encode()}),
        ("silo_joined", {"silo": f"{SECRET}\n{{}}"}),
        ("silo_joined", {"silo": [SECRET]}),
        ("silo_joined", {"silo": SECRET + "x" * 200}),
        ("run_stopped", {"reason": SECRET}),
        ("corrupt_shares", {"senders": {"silo-a": SECRET.encode()}}),
        ("hardware", {"chose": [SECRET.encode()]}),
        ("ca_retired", {"ca_sha256": SECRET}),
        ("round_finished", {"round": SECRET}),
        ("round_finished", {"round": True}),
        ("round_finished", {"round": float("nan")}),
        ("silo_standing", {"left": 1}),
    ],
)
def test_what_is_not_allowed_is_marked_and_kept_out(event, fields):
    record = one(lambda log: log.info(event, **fields))
    assert record["event"] == event
    assert REDACTED in record.values()
    assert record["redacted"]


def test_an_unlisted_event_shows_no_value():
    record = one(lambda log: log.info(SECRET, silo="hospital-a", **{SECRET: 1}))
    assert record["event"] == "unlisted_event"
    assert record["silo"] == record["field"] == REDACTED
    assert record["redacted"] == ["event", "silo", "unlisted"]


def test_a_number_is_whole():
    assert one(lambda log: log.info("round_finished", round=0.731259))["round"] == 1
    assert shown(Kind.NUMBER, 3.4) == 3


class Unwritable(io.StringIO):
    def write(self, _line):
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")]
)
def test_a_line_that_cannot_be_written_is_counted_and_raises_nothing(error):
    sink = Unwritable()
    sink.error = error
    before = failed_writes()
    with logs_on_stderr({}, stream=sink):
        structlog.get_logger().warning("silo_joined", silo="hospital-a")
        sink.error = ValueError("I/O operation on closed file")
        structlog.get_logger().warning("silo_joined", silo="hospital-a")
    assert failed_writes() - before == 2


def test_text_is_bounded_and_cannot_forge_a_line():
    hostile = "end\n\x1b[2J\u202e\x07" + "a" * 9000
    record = one(lambda log: log.warning("round_aborted", said=hostile))
    assert len(record["said"]) <= 400
    assert record["said"].isprintable()
    sink = Terminal()
    with logs_on_stderr({}, stream=sink):
        structlog.get_logger().warning("round_aborted", said=hostile)
    assert sink.getvalue().count("\n") == 1
    assert "\x1b[2J" not in sink.getvalue()


@pytest.mark.parametrize("kind", Kind)
def test_no_form_takes_bytes(kind):
    for value in (b"raw", [b"raw"], {"a": b"raw"}, bytearray(b"raw")):
        with pytest.raises(Unfit):
            shown(kind, value)


# Errors -----------------------------------------------------------------------------------------


def failure(make):
    try:
        make()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError


def ours(text, cause=None):
    namespace = {"__name__": "silo_agent.made_up", "LocalStoreError": LocalStoreError}
    exec("def make(text, cause):\n    raise LocalStoreError(text) from cause", namespace)  # noqa: S102
    return failure(lambda: namespace["make"](text, cause))


def test_a_foreign_error_is_told_by_its_type():
    assert told(failure(lambda: int(SECRET))) == "ValueError"
    assert told(failure(lambda: {}[SECRET])) == "KeyError"
    assert told(OSError(28, SECRET, SECRET)) == "OSError: No space left on device"
    assert told(OSError(SECRET)) == "OSError"


def test_an_error_of_ours_is_told_by_its_text_without_what_it_quotes():
    assert told(ours("the roster is absent")) == "the roster is absent"
    cause = failure(lambda: int(SECRET))
    text = told(ours(f"report.jsonl: {cause}", cause))
    assert text == "report.jsonl: ValueError"
    text = told(ours(f"report.jsonl: {cause!r}", cause))
    assert text == "report.jsonl: ValueError"
    # Through one of ours in between, too.
    between = ours(f"the row: {cause}", cause)
    assert told(ours(f"the file: {between}", between)) == "the file: the row: ValueError"


def test_an_error_of_ours_that_a_plug_in_raised_is_not_ours():
    namespace = {"__name__": "ward", "Failure": EnvironmentFailureError, "text": SECRET}
    exec("def step():\n    raise Failure(text)", namespace)  # noqa: S102
    assert told(failure(namespace["step"])) == "EnvironmentFailureError"


@pytest.mark.parametrize("kind", [TrainingWorkerError, RolloutWorkerError])
def test_an_error_that_carries_a_workers_words_has_others_for_the_log(kind):
    assert SECRET in str(kind(SECRET))
    assert SECRET not in told(kind(SECRET))
    assert "worker" in told(kind(SECRET)) or "process" in told(kind(SECRET))


def test_an_error_that_cannot_be_printed_costs_nothing():
    class BrokenError(LocalStoreError):
        __module__ = "silo_agent.made_up"

        def __str__(self):
            raise RuntimeError(SECRET)

    assert told(BrokenError()) == "BrokenError"


def test_a_traceback_shows_frames_and_neither_lines_nor_values():
    def inner(secret):
        held = secret * 2
        return int(held[: len(secret)])

    def outer():
        try:
            inner(SECRET)
        except ValueError as error:
            error.add_note(SECRET)
            raise ExceptionGroup(SECRET, [KeyError(SECRET), error]) from error

    def call(log):
        try:
            outer()
        except Exception:
            log.exception("run_crashed", run="r1")

    record = one(call)
    shown_trace = record["exception"]
    assert shown_trace.startswith("Traceback")
    assert "in outer" in shown_trace
    assert "in inner" in shown_trace
    assert "ValueError" in shown_trace
    assert "KeyError" in shown_trace
    assert "held" not in shown_trace


def test_a_traceback_is_bounded():
    def deep(n):
        return deep(n - 1) if n else int(SECRET)

    text = traceback_of(failure(lambda: deep(500)))
    assert text.count("\n") < 60
    assert "more frames" in text
    error = ValueError(SECRET)
    error.__cause__ = error.__context__ = KeyError("b")
    error.__cause__.__cause__ = error
    assert traceback_of(error).count("Traceback") == 2


# Format and level -------------------------------------------------------------------------------


def test_a_terminal_gets_lines_for_people():
    sink = Terminal()
    with logs_on_stderr({}, stream=sink):
        structlog.get_logger().info("silo_joined", silo="hospital-a")
    assert "silo_joined" in sink.getvalue()
    assert not sink.getvalue().startswith("{")
    assert sink.getvalue().count("\n") == 1


@pytest.mark.parametrize(("form", "is_json"), [("json", True), ("console", False), ("auto", True)])
def test_the_format_can_be_chosen(form, is_json):
    for sink in (io.StringIO(), Terminal()) if form != "auto" else (io.StringIO(),):
        with logs_on_stderr({"CHORALE_LOG_FORMAT": form}, stream=sink):
            structlog.get_logger().info("silo_joined", silo="hospital-a")
        assert sink.getvalue().startswith("{") is is_json
        # Colours are for terminals.
        assert ("\x1b" in sink.getvalue()) is (not is_json and sink.isatty())


@pytest.mark.parametrize(
    ("level", "count"), [("debug", 4), ("info", 3), ("WARNING", 2), ("error", 1)]
)
def test_the_level_can_be_chosen(level, count):
    def call(log):
        for method in ("debug", "info", "warning", "error"):
            getattr(log, method)("left")

    assert len(logged(call, CHORALE_LOG_LEVEL=level)) == count


@pytest.mark.parametrize("variable", ["CHORALE_LOG_LEVEL", "CHORALE_LOG_FORMAT"])
def test_a_wrong_setting_says_what_is_right(variable):
    with (
        pytest.raises(LogSettingError, match=f"{variable} is one of"),
        logs_on_stderr({variable: SECRET}),
    ):
        pass


def test_everything_is_as_before_afterwards():
    structlog.reset_defaults()
    with logs_on_stderr({}, stream=io.StringIO()):
        assert structlog.is_configured()
    assert not structlog.is_configured()
    before = (
        sys.excepthook,
        threading.excepthook,
        sys.unraisablehook,
        warnings.showwarning,
        logging.getLogRecordFactory(),
        list(logging.getLogger().handlers),
    )
    with daemon_logs():
        assert sys.excepthook is not before[0]
    assert before == (
        sys.excepthook,
        threading.excepthook,
        sys.unraisablehook,
        warnings.showwarning,
        logging.getLogRecordFactory(),
        list(logging.getLogger().handlers),
    )


# What is not ours -------------------------------------------------------------------------------


def in_a_daemon(act):
    sink = io.StringIO()
    with logs_on_stderr({}, stream=sink), daemon_logs():
        act()
    assert SECRET not in sink.getvalue()
    return lines(sink)


def test_a_librarys_record_says_who_and_where():
    own = io.StringIO()
    handler = logging.StreamHandler(own)

    def act():
        logger = logging.getLogger("tokenising")
        logging.getLogger("asyncio").error("Task failed", exc_info=failure(lambda: int(SECRET)))
        # A library that writes for itself is given nothing to write.
        logger.addHandler(handler)
        try:
            int(SECRET)
        except ValueError:
            logger.exception("cannot read %s", SECRET)
        logger.warning("cannot read %s", SECRET)
        logger.info("quiet")
        logger.removeHandler(handler)

    unhandled, first, second = in_a_daemon(act)
    assert "in failure" in unhandled["exception"]
    assert (first["event"], first["library"], first["error"]) == (
        "foreign_log",
        "tokenising",
        "ValueError",
    )
    assert first["place"].startswith("test_logs:")
    assert "exception" not in first
    assert (second["level"], "error" in second) == ("warning", False)
    assert own.getvalue()
    assert SECRET not in own.getvalue()


def test_a_warning_says_its_category_and_where():
    def act():
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = shower
            warnings.warn(SECRET, UserWarning, stacklevel=1)

    sink = io.StringIO()
    with logs_on_stderr({}, stream=sink), daemon_logs():
        shower = warnings.showwarning
        act()
    (record,) = lines(sink)
    assert (record["event"], record["library"], record["error"]) == (
        "foreign_log",
        "warnings",
        "UserWarning",
    )
    assert SECRET not in sink.getvalue()


def test_what_nobody_catches_is_a_line():
    def act():
        thread = threading.Thread(target=int, args=(SECRET,), name="worker")
        thread.start()
        thread.join()
        error = failure(lambda: int(SECRET))
        sys.excepthook(type(error), error, error.__traceback__)

    found = in_a_daemon(act)
    assert [(line["event"], line["where"]) for line in found] == [
        ("uncaught", "worker"),
        ("uncaught", "main"),
    ]
    assert all("ValueError" in line["exception"] for line in found)


def test_a_daemon_that_fails_says_so_in_a_line():
    sink = io.StringIO()
    with (
        pytest.raises(ValueError, match=SECRET),
        logs_on_stderr({}, stream=sink),
        daemon_logs(),
    ):
        int(SECRET)
    (record,) = lines(sink)
    assert (record["event"], record["reason"]) == ("daemon_failed", "ValueError")
    assert "Traceback" in record["exception"]
    assert SECRET not in sink.getvalue()


def test_a_failure_that_is_explained_needs_no_frames():
    sink = io.StringIO()
    with pytest.raises(LocalStoreError), logs_on_stderr({}, stream=sink), daemon_logs():
        raise ours("the ledger is held by another process")
    (record,) = lines(sink)
    assert record["reason"] == "the ledger is held by another process"
    assert "exception" not in record


# Commands ---------------------------------------------------------------------------------------


@pytest.fixture(params=[server.cli.program, silo_agent.cli.program], ids=["chorale", "silo"])
def program(request):
    return request.param


def failed(program, capsys, act=lambda: None):
    with pytest.raises(Answered) as ended, program.answering(Format.JSON):
        act()
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    return ended.value.code, json.loads(said.out), said.err


def test_every_command_logs_to_stderr(program, capsys):
    before = structlog.get_config()
    with program.answering(Format.JSON):
        structlog.get_logger().info("silo_joined", silo="hospital-a")
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err)["event"] == "silo_joined"
    assert structlog.get_config() == before


@pytest.mark.parametrize("variable", ["CHORALE_LOG_LEVEL", "CHORALE_LOG_FORMAT"])
def test_a_wrong_setting_is_an_argument_error(program, capsys, monkeypatch, variable):
    monkeypatch.setenv(variable, "loud")
    code, answer, _ = failed(program, capsys)
    assert (code, answer["error_code"]) == (4, "log_setting")
    assert variable in answer["message"]


def test_tracing_that_cannot_be_had_is_an_argument_error(program, capsys, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "ops.tracing.otel", None)

    def act():
        with tracing("chorale"):
            pass

    code, answer, _ = failed(program, capsys, act)
    assert (code, answer["error_code"]) == (4, "tracing")
    assert "pip install 'chorale[otel]'" in answer["message"]


def test_a_package_that_is_not_installed_is_named_with_what_to_install(program, capsys):
    code, answer, _ = failed(program, capsys, lambda: importlib.import_module("nowhere.part"))
    assert (code, answer["error_code"]) == (4, "package_missing")
    assert answer["message"] == "a package is not installed: nowhere"
    wanted = {server.cli.program: "chorale", silo_agent.cli.program: "chorale[silo]"}[program]
    assert answer["hint"] == f"pip install '{wanted}'"
    # A module that a package of ours lacks is another matter.
    code, answer, _ = failed(program, capsys, lambda: importlib.import_module("evolution.nowhere"))
    assert (code, answer["error_code"]) == (5, "bug")


def test_a_defect_shows_where_and_no_value(program, capsys):
    code, answer, err = failed(program, capsys, lambda: int(SECRET))
    assert (code, answer["error_code"]) == (5, "bug")
    assert answer["message"] == "internal error: ValueError"
    assert "Traceback" in err
    assert "answering" in err
