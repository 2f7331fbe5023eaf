"""Every log call of the daemons names an event of the vocabulary, literally, and its fields.

Not failures: entries for the standard library's records, which are made in one place. Failures: an
event or field that is not in the vocabulary, one in it that nobody logs, an error's text handed to
the log, and any other way to log.
"""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from ops.logs.events import EVENTS, FIELDS, Kind
from tests.kit.paths import ROOT

FILES = sorted(
    path
    for package in ("server", "silo_agent", "federation", "ops", "evolution")
    for path in (ROOT / package).rglob("*.py")
)
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
OWN = {"ops/logs/foreign.py", "ops/logs/logger.py", "ops/logs/setup.py", "ops/tracing/otel.py"}
"""The files that take in and write the log, or keep a library's out of a command's prose."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def loggers(tree: ast.Module) -> set[str]:
    """Names that a module binds to a logger."""
    return {
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "get_logger"
    }


def log_calls(tree: ast.Module) -> list[ast.Call]:
    names = loggers(tree)
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in names
    ]


def event_of(call: ast.Call) -> object:
    place = 1 if call.func.attr == "log" else 0
    if len(call.args) != place + 1 or not isinstance(call.args[place], ast.Constant):
        return None
    return call.args[place].value


def problems(tree: ast.Module) -> list[str]:
    found = []
    caught = {
        id(call): handler.name
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and handler.name
        for call in ast.walk(handler)
        if isinstance(call, ast.Call)
    }
    for call in log_calls(tree):
        where, event = f"line {call.lineno}", event_of(call)
        if call.func.attr not in LEVELS:
            found.append(f"{where}: {call.func.attr} binds what no table knows")
            continue
        if event not in EVENTS:
            found.append(f"{where}: {event!r} is not an event of ops/logs/events.py")
            continue
        for given in call.keywords:
            if given.arg == "exc_info":
                continue
            if given.arg not in EVENTS[event]:
                found.append(f"{where}: {event} has no field {given.arg!r}")
            elif FIELDS[given.arg] is Kind.CAUSE and not isinstance(given.value, ast.Name):
                found.append(f"{where}: {given.arg} takes the error itself")
            elif quotes(given, caught.get(id(call))):
                found.append(f"{where}: {given.arg} quotes an error")
    return found


def quotes(given: ast.keyword, error: str | None) -> bool:
    """Whether a field is made of a caught error's words."""
    if error is None or FIELDS[given.arg] is Kind.CAUSE:
        return False
    text = ast.unparse(given.value).replace(f"type({error}).__name__", "")
    names = {node.id for node in ast.walk(ast.parse(text or "0")) if isinstance(node, ast.Name)}
    return error in names and FIELDS[given.arg] is not Kind.NUMBER


def other_ways(path: Path, tree: ast.Module) -> list[str]:
    """Ways to a line that no table knows: a logger in passing, the library's own logging."""
    text = ast.unparse(tree)
    if name_of(path) in OWN:
        return []
    passing = text.count("get_logger(") != len(loggers(tree))
    # A line of structlog's own, before it is configured, would be written as it is.
    banned = ("import logging", "import structlog", "from structlog")
    return ["a logger in passing"] * passing + [words for words in banned if words in text]


def test_every_log_call_is_of_the_vocabulary():
    assert len(FILES) > 100
    found = []
    for path in FILES:
        tree = ast.parse(path.read_text())
        found += [f"{name_of(path)}: {said}" for said in problems(tree) + other_ways(path, tree)]
    assert found == []


def test_every_entry_is_used():
    used: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        for call in log_calls(ast.parse(path.read_text())):
            used[event_of(call)] |= {given.arg for given in call.keywords} - {"exc_info"}
    assert {event: fields for event, fields in EVENTS.items() if event not in used} == {}
    unused = {event: EVENTS[event] - fields for event, fields in used.items() if event in EVENTS}
    assert {event: fields for event, fields in unused.items() if fields} == {}
    assert set(FIELDS) == set().union(*EVENTS.values())


@pytest.mark.parametrize(
    "code",
    [
        "log.info('of_no_table')",
        "log.info(f'silo_{name}')",
        "log.info('silo_joined', reward=1.0)",
        "log.info('silo_joined', **fields)",
        "log.info('silo_joined %s', name)",
        "log.bind(silo=name).info('silo_joined')",
        "try: f()\nexcept OSError as e: log.warning('scratch_not_deleted', reason=str(e))",
        "try: f()\nexcept OSError as e: log.warning('foreign_log', library='x', error=str(e))",
        "try: f()\nexcept OSError as e: log.warning('silo_is_older', advice=f'do {e}')",
    ],
)
def test_the_rules_are_able_to_fail(code):
    assert problems(ast.parse(f"log = get_logger(__name__)\n{code}"))
