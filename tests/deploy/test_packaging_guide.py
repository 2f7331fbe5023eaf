"""``docs/deployment.md``: its commands exist, and what it names is there."""

import re

import pytest

from tests.kit.deploy.commands import PROGRAMS, require_command
from tests.kit.paths import ROOT

GUIDE = ROOT / "docs" / "deployment.md"
OTHERS = ("helm ", "docker build", "python3 ", "kubectl create", "sudo systemctl", "--build-arg")
"""Lines in which our name is somebody else's argument."""


def commands():
    """Every command line of ours in a block of code."""
    for block in re.findall(r"(?ms)^```$(.*?)^```$", GUIDE.read_text()):
        for line in block.splitlines():
            text = re.sub(r"\s#.*$", "", line)
            text = re.sub(r" \d?[<>]\S+", "", text)
            # What is typed inside something else is ours from there on.
            text = re.split(r" exec \S+ -- | exec (?:-T )?coordinator ", text)[-1]
            if text.strip().startswith(OTHERS) or "/pip install" in text:
                continue
            names = "|".join(PROGRAMS)
            if found := re.search(rf"(?:^|[ /])((?:{names}) [a-z][^&|]*)", text):
                yield found[1].split()


def test_every_command_exists():
    found = list(commands())
    assert len(found) >= 8
    for words in found:
        require_command(words)


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)]+)\)", GUIDE.read_text()))
def test_links_lead_somewhere(target):
    path, _, anchor = target.partition("#")
    linked = GUIDE.parent / path
    assert linked.exists()
    headings = re.findall(r"(?m)^#+ (.*)$", linked.read_text())
    anchors = {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}
    assert not anchor or anchor in anchors


def test_what_it_names_is_there():
    text = GUIDE.read_text()
    for path in re.findall(r"`((?:deploy|tests)/[\w./*-]+)`", text):
        assert list(ROOT.glob(path.rstrip("/"))), path
