"""What the runbooks tell an operator to type, to query and to look for is there.

Covered: commands and their options, PromQL, log events, reasons, kinds, checks and metrics by their
names, links between files. Not covered: whether the advice is good.
"""

import re
import shlex
from importlib import import_module

import pytest
import typer

from dp.accounting.charge import UNIT_KINDS
from dp.config import Mode
from ops.logs.events import EVENTS
from secagg.errors import Check
from server.audit import AuditEvent
from server.config import CoordinatorConfig
from server.errors import Reason
from server.figures import STEPS, Phase
from server.states import RunState, SiloState
from silo_agent.books.audit import SiloEvent
from silo_agent.metrics import ERROR_KINDS
from silo_agent.policy.refusal import DAEMON_RULES
from tests.kit.deploy import prometheus_files as files
from tests.kit.deploy.alerts import ALERTS, RULES, known_series, wrong_names

PROGRAMS = {
    "chorale": "server.cli.main",
    "chorale-coordinator": "server.cli.coordinator",
    "chorale-silo": "silo_agent.cli.main",
}
PAGES = {path.stem: path.read_text() for path in sorted(files.RUNBOOKS.glob("*.md"))}
SECTIONS = ("What it means", "What to look at", "What to do", "When to wake someone")
WORDS = {
    *EVENTS, *Check, *AuditEvent, *SiloEvent, *Reason, *ERROR_KINDS, *DAEMON_RULES, *RunState,
    *UNIT_KINDS, *CoordinatorConfig.model_fields, *SiloState, *Phase, *Mode,
    *(f"{how}_{step}" for how in ("too_few", "refused") for step in STEPS),
}  # fmt: skip
KEYS_OF_FILES = {
    # [rounds], [privacy], [training], [limits] of plan.toml, policy.toml and silo.toml.
    "ready_deadline_s", "phase_deadline_s", "spare_attempts", "max_quarantined", "clip_l2",
    "epsilon_cap", "epsilon_caps", "sit_out_after", "sit_out_rounds", "base_sha256",
    "learning_rate", "kl_beta", "clip_low", "clip_high", "mask_mismatch", "processed_logprobs",
    # What rounds.jsonl says of a training.
    "ratio_min", "ratio_max", "groups_used",
    "micro_batch_tokens", "gradient_checkpointing", "approval", "allow_rollback", "max_kept_runs",
    "max_disk_bytes",
    # Words of a rule and of a configuration of Prometheus.
    "runbook_url",
}  # fmt: skip


def spans(text):
    """Inline code, and the lines of code blocks without a language."""
    for language, block in re.findall(r"(?ms)^```(\w*)\n(.*?)^```", text):
        if not language:
            yield from block.splitlines()
    prose = re.sub(r"(?ms)^```.*?^```", "", text)
    yield from (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))


def commands():
    """Every command line that a page or an alert's text shows."""
    for name, text in PAGES.items():
        for span in spans(text):
            if span.split(" ")[0] in PROGRAMS and " " in span:
                yield name, span
    for rule in ALERTS:
        for text in rule.annotations.values():
            for found in re.findall(r"\bchorale(?:-\w+)?(?: [a-z]+)+", text):
                yield rule.name, found


def command_of(words):
    """The command that the first words name, and the rest of them."""
    node = typer.main.get_command(import_module(PROGRAMS[words[0]]).app)
    rest = list(words[1:])
    while rest and rest[0] in getattr(node, "commands", {}):
        node = node.commands[rest.pop(0)]
    return node, rest


@pytest.mark.parametrize(("where", "line"), sorted(set(commands())), ids=str)
def test_a_command_exists_with_its_options(where, line):
    words = shlex.split(line, comments=True)
    node, rest = command_of(words)
    # Some groups do something by themselves.
    group = hasattr(node, "commands") and not node.invoke_without_command
    prose = where in {rule.name for rule in ALERTS} and line not in PAGES[where]
    if prose:
        # Running text goes on after the command, in words that are no part of it.
        assert words[1:] != rest, line
        assert not group, line
        return
    assert not group, line
    options = {name for parameter in node.params for name in parameter.opts}
    given = [word for word in rest if word.startswith("-") and word != "-"]
    assert set(given) <= options, line
    flags = {name for p in node.params if getattr(p, "is_flag", False) for name in p.opts}
    values = sum(word not in flags for word in given)
    arguments = [p for p in node.params if p.param_type_name == "argument"]
    assert len(rest) - len(given) - values <= len(arguments), line


def test_commands_are_found():
    shown = {line for _, line in commands()}
    assert len(shown) > 40
    assert "chorale ca rotate --overlap 30d" in shown


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"README"}))
def test_a_page_is_whole(page):
    text = PAGES[page]
    assert text.startswith(f"# {page}\n\nSeverity: ")
    headings = re.findall(r"(?m)^## (.*)$", text)
    assert headings[:-1] == list(SECTIONS)
    assert headings[-1] in {"Why this threshold", "Why these thresholds"}
    (said,) = re.findall(r"(?m)^Severity: (.*(?:\n.+)*)", text)
    for severity in {rule.labels["severity"] for rule in ALERTS if rule.name == page}:
        assert severity in said


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"README"}))
def test_the_queries_of_a_page_read_what_is_exported(page):
    (part,) = {rule.part for rule in ALERTS if rule.name == page}
    blocks = re.findall(r"(?ms)^```promql\n(.*?)^```", PAGES[page])
    queries = [line for block in blocks for line in block.splitlines()]
    assert queries
    known = known_series(part)
    for query in queries:
        assert wrong_names(query, known) == [], query


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_words_of_a_page_exist(page):
    """A word with an underscore, or an error's name, is one that the code uses."""
    names = {name for part in RULES for name in known_series(part)}
    metrics = names | {name.removesuffix("_bucket") for name in names}
    for span in spans(PAGES[page]):
        for word in re.findall(r"^(?:rule )?(\w+_\w+|\w+Error)$", span):
            known = WORDS | metrics | KEYS_OF_FILES
            assert word in known, f"{word} in {page}.md"


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        path, _, anchor = target.partition("#")
        file = files.RUNBOOKS / path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", file.read_text())
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, target
