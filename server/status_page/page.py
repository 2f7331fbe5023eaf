"""The document: what its templates are given, and how it is kept from being more than a page.

Invariants:

1. The page asks for nothing but itself: no script, no font, no image but a drawn one; the policy in
   ``HEADERS`` holds the browser to that even where a text had slipped through.
2. The one style is named there by its digest, so no other is applied.
3. Whatever a template puts out is escaped, whoever wrote it, and is one line of printable
   characters: no control, no change of direction, no surrogate, so that a name can neither break
   out of its place nor reorder what stands beside it. Only a template makes markup.
4. A name that a template does not know is an error, and every template is compiled at the start.
5. It begins again by itself every ``REFRESH_S``, unless it is held.

Covered: the whole of a coordinator, one run, the absence of either. Not covered: who may see it
(``access.py``); how it looks (``templates/``).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dp.config import ADJACENCY
from dp.noise.figures import NOT_REPORTED
from federation.text import printable
from server.states import ACTIVE
from server.status_page import words
from server.status_page.curve import coordinate
from server.status_page.figures import (
    FAMILIES,
    cohort_chart,
    families,
    figure_words,
    place,
    success_charts,
    update_charts,
)
from server.status_page.picture import Picture, RunView
from server.status_page.timeline import DRAWN, timeline
from server.status_page.verdict import CERTIFICATE_S, Level, due_share, judge

__all__ = ["HEADERS", "HOLD", "REFRESH_S", "RUNS", "failure_page", "main_page", "run_page"]

RUNS: Final = "/runs/"
"""Below it each run has a page of its own."""
REFRESH_S: Final = 10
HOLD: Final = "hold"
OVERVIEW_ROWS: Final = 10
RUN_ROWS: Final = 60
SHOWN_SILOS: Final = 200
MAX_TEXT_CHARS: Final = 2000
MAX_NAME_CHARS: Final = 80
TEMPLATES: Final = Path(__file__).with_name("templates")
STYLE: Final = (TEMPLATES / "style.css").read_text()
_DIGEST: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": (
            f"default-src 'none'; style-src 'sha256-{_DIGEST}'; img-src data:; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
)
_HEADLINES: Final = {
    Level.WELL: "All is well",
    Level.SETUP: "Nothing runs yet",
    Level.WATCH: "Worth a look",
    Level.ALARM: "Someone is needed",
}


def main_page(picture: Picture, *, held: bool, runbooks_url: str = "") -> bytes:
    """The coordinator at a glance; what it is concerned about links to the runbooks, if any."""
    verdict = judge(picture)
    return _document(
        "coordinator.html",
        picture,
        level=verdict.level,
        title=_HEADLINES[verdict.level],
        path="/",
        held=held,
        rows=OVERVIEW_ROWS,
        concerns=verdict.concerns,
        runbooks_url=runbooks_url,
    )


def run_page(picture: Picture, run: RunView, *, held: bool) -> bytes:
    """One run in full."""
    return _document(
        "run.html",
        picture,
        level=Level.SETUP,
        title=f"{_brief(run.line.run_id)} {run.line.state.value}",
        path=_path_of(run.line.run_id),
        held=held,
        rows=RUN_ROWS,
    )


def failure_page(title: str, text: str, *, again: bool) -> bytes:
    """What is shown when there is no picture: what is wrong in a few words, and what to do.

    With ``again`` that may pass by itself, so that the page tries again.
    """
    level = Level.ALARM if again else Level.SETUP
    return _render("failure.html", title=title, text=text, level=level, held=not again)


def _document(name: str, picture: Picture, *, rows: int, **values: Any) -> bytes:
    run = picture.run
    if run is not None:
        values |= {
            "rounds": timeline(run.releases, most=rows),
            "rounds_seen": len({release.round for release in run.releases}),
            "summed": [one for one in run.releases if one.outcome == "aggregated"],
            "success": success_charts(run),
            "not_drawn": families(run)[FAMILIES:],
            "updates": update_charts(run),
            "cohorts": cohort_chart(run),
            "rolled_back": any(one.outcome == "rollback" for one in run.releases),
        }
    return _render(name, picture=picture, run=run, now=picture.at_unix_s, rows=rows, **values)


def _render(name: str, **values: Any) -> bytes:
    return _ENVIRONMENT.get_template(name).render(values).encode()


def _plain(value: Any) -> Any:
    """What an expression of a template puts out; numbers with a point are those of drawings."""
    if isinstance(value, float):
        return coordinate(value)
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, max_chars=MAX_TEXT_CHARS)
    return value


def _brief(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Cut a text that somebody else made to a length that a layout bears."""
    return printable(text, max_chars=max_chars)


def _path_of(run_id: str) -> str:
    """Where the page of one run is."""
    return f"{RUNS}{quote(run_id, safe='')}"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "ago": words.ago,
        "brief": _brief,
        "byte_count": words.byte_count,
        "clock": words.clock,
        "figure": figure_words,
        "named": words.named,
        "number": words.number,
        "path_of": _path_of,
        "percent": words.percent,
        "place": place,
        "span": words.span,
        "stamp": words.stamp,
        "took": words.took,
    }
    made.globals |= {
        "ACTIVE": ACTIVE,
        "ADJACENCY": ADJACENCY,
        "CERTIFICATE_S": CERTIFICATE_S,
        "DRAWN": DRAWN,
        "HOLD": HOLD,
        "NOT_REPORTED": NOT_REPORTED,
        "REFRESH_S": REFRESH_S,
        "SHOWN_SILOS": SHOWN_SILOS,
        "due_share": due_share,
        "STYLE": Markup(STYLE),  # noqa: S704 - a file of ours
        "UNKNOWN": words.UNKNOWN,
    }
    for name in made.list_templates(extensions=["html"]):
        made.get_template(name)
    return made


_ENVIRONMENT: Final = _environment()
