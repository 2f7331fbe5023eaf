"""Every link of every Markdown file leads to a file that is there, and to a heading in it."""

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.kit.paths import ROOT

PAGES = sorted(
    ROOT / line
    for line in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()
    if (ROOT / line).exists()
)  # fmt: skip
FENCE = re.compile(r"(?ms)^ *(```|~~~).*?^ *\1[ \t]*$")
HEADING = re.compile(r"(?m)^#{1,6} +(.*?)[ #]*$")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
SOURCE = re.compile(r"<img[^>]* src=\"([^\"]+)\"")
DEFINED = re.compile(r"(?m)^\[[^\]]+\]:\s+(\S+)")


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    found: set[str] = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    times: dict[str, int] = {}
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        times[slug] = times.get(slug, -1) + 1
        found.add(f"{slug}-{times[slug]}" if times[slug] else slug)
    return found


def links(text: str) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    return LINK.findall(prose) + DEFINED.findall(prose) + SOURCE.findall(prose)


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere; other people's addresses are not asked."""
    found = []
    for link in links(page.read_text()):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        there = page if not path else (page.parent / path).resolve()
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in anchors(there.read_text())
        ):
            found.append(f"{page.relative_to(ROOT)}: {link}")
    return found


def test_every_link_leads_somewhere():
    assert len(PAGES) > 50
    assert [link for page in PAGES for link in broken(page)] == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[a](gone.md)", ["gone.md"]),
        ("[a](#here) and [b](#gone)\n\n# Here", ["#gone"]),
        ("[a](#twice-1)\n\n# Twice\n\n## Twice", []),
        ("[a](#a-bc-d)\n\n## A `b.c` d", []),
        ("`[a](gone.md)`\n\n```\n[a](gone.md)\n# Gone\n```\n\n[b](#gone)", ["#gone"]),
        ("[a][b]\n\n[b]: gone.md", ["gone.md"]),
        ("![picture](gone.png) [a](https://example.org/#gone)", ["gone.png"]),
        ('<img alt="a" src="gone.png" width="9">', ["gone.png"]),
    ],
)
def test_a_link_that_leads_nowhere_is_found(text, wanted, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(text)
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert broken(page) == [f"page.md: {link}" for link in wanted]
