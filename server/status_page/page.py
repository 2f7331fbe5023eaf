"""The document: what stands where, how it is dressed, how it is kept from being more than a page.

Invariants:

1. The page asks for nothing but itself: no script, no font, no image but a drawn one; the policy in
   ``HEADERS`` holds the browser to that even where a text had slipped through.
2. The one style is named there by its digest, so no other is applied.
3. It begins again by itself every ``REFRESH_S``, unless it is held.

Covered: the whole of a coordinator, one run, the absence of either. Not covered: who may see it
(``access.py``).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from dp.noise.figures import NOT_REPORTED
from server.status_page import words
from server.status_page.federation_section import facts, first_steps
from server.status_page.figures import (
    cohort_chart,
    figure_words,
    place,
    success_charts,
    update_charts,
)
from server.status_page.lists import adapters, runs, silos
from server.status_page.markup import Child, Html, brief, element, joined, path_of, table
from server.status_page.overview import banner, headline, run_banner, tiles
from server.status_page.picture import Picture, RunView
from server.status_page.style import STYLE
from server.status_page.timeline import legend, timeline
from server.status_page.verdict import Level, judge

__all__ = ["HEADERS", "REFRESH_S", "failure_page", "main_page", "run_page"]

REFRESH_S: Final = 10
OVERVIEW_ROWS: Final = 10
RUN_ROWS: Final = 60
HOLD: Final = "hold"
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
_DOT: Final = {
    Level.WELL: "#1a7f4e",
    Level.SETUP: "#5b6b7a",
    Level.WATCH: "#c47a00",
    Level.ALARM: "#c62828",
}


def main_page(picture: Picture, *, held: bool) -> bytes:
    """The coordinator at a glance."""
    verdict = judge(picture)
    run = picture.run
    body: list[Child] = [banner(picture, verdict), first_steps(picture)]
    if run is not None:
        body.append(tiles(picture))
        body += _run_sections(picture, run, rows=OVERVIEW_ROWS, whole=False)
    body += [
        _card("Silos", silos(picture), id_="silos"),
        _card("Federation", facts(picture), id_="federation") if run is None else None,
    ]
    title = headline(verdict.level)
    return _document(picture, verdict.level, body, path="/", held=held, title=title)


def run_page(picture: Picture, run: RunView, *, held: bool) -> bytes:
    """One run in full."""
    body: list[Child] = [run_banner(picture, run), tiles(picture)]
    body += _run_sections(picture, run, rows=RUN_ROWS, whole=True)
    title = f"{brief(run.line.run_id)} {run.line.state.value}"
    return _document(
        picture, Level.SETUP, body, path=path_of(run.line.run_id), held=held, title=title
    )


def failure_page(title: str, text: str, *, again: bool) -> bytes:
    """What is shown when there is no picture: what is wrong in a few words, and what to do.

    With ``again`` that may pass by itself, so that the page tries again.
    """
    level = Level.ALARM if again else Level.SETUP
    section = element(
        "section",
        element("div", element("h1", title), element("p", text)),
        class_=f"banner {level.value}",
    )
    back = element("p", element("a", "Back to the coordinator", href="/"))
    return _html(title, level, (element("main", section, back, id="main"),), refresh=again)


def _run_sections(picture: Picture, run: RunView, *, rows: int, whole: bool) -> list[Child]:
    rounds = element(
        "div",
        timeline(run.releases, run.current, now_unix_s=picture.at_unix_s, most=rows)
        if run.releases
        else element("p", "No round yet.", class_="empty"),
        legend() if run.releases else None,
        _left_out(run, rows, whole=whole),
        class_="column",
    )
    curves = [*success_charts(run)]
    rolled_back = any(release.outcome == "rollback" for release in run.releases)
    updates = [*update_charts(run), cohort_chart(run)]
    return [
        _card("Rounds", rounds, id_="rounds"),
        _card(
            "Success by environment",
            element("div", *curves, class_="charts")
            if curves
            else element("p", _without_success(run), class_="empty"),
            id_="success",
            hint="from masked sums; the band is one standard error"
            + ("; a dashed line is a rollback" if rolled_back else ""),
        ),
        _card("Updates", element("div", *updates, class_="charts"), id_="updates",
              hint="from masked sums and public cohorts"),
        element(
            "div",
            _card("Adapters", adapters(run, most=rows), id_="adapters"),
            _card("Figures", _table_of_figures(run), id_="figures")
            if whole
            else element(
                "div",
                _card("Runs", runs(picture), id_="runs"),
                _card("Federation", facts(picture), id_="federation"),
                class_="stack",
            ),
            class_="pair",
        ),
    ]  # fmt: skip


def _without_success(run: RunView) -> str:
    if any(release.outcome == "aggregated" for release in run.releases):
        return f"{words.UNKNOWN} {NOT_REPORTED}: the sums of this run tell no success."
    return "No sum has told a success yet."


def _left_out(run: RunView, rows: int, *, whole: bool) -> Html | None:
    shown = len({release.round for release in run.releases})
    if not run.older and shown <= rows:
        return None
    curves = f"curves show the newest {len(run.releases)}" if run.older else "curves show all"
    more: Child = "" if whole else element("a", "more", href=path_of(run.line.run_id))
    return element("p", f"The newest {min(shown, rows)} rounds; {curves}. ", more, class_="hint")


def _table_of_figures(run: RunView) -> Html:
    """The curves as words, for whoever does not see them."""
    summed = [release for release in run.releases if release.outcome == "aggregated"]
    if not summed:
        return element("p", "Nothing was summed yet.", class_="empty")
    rows = []
    for release in reversed(summed[-RUN_ROWS:]):
        said = [
            f"{brief(family)} {figure_words(figure, ratio=True)}"
            for family, figure in release.success.items()
        ]
        if not release.success and not release.step:
            said.append(f"success {words.UNKNOWN} {NOT_REPORTED}")
        said += [
            f"κ {figure_words(release.agreement, ratio=False)}",
            f"ζ̂² {figure_words(release.heterogeneity, ratio=False)}",
        ]
        listed = element("ul", *(element("li", one) for one in said))
        rows.append((place(release, run.steps), listed))
    return table(
        "Figures of the sums, newest first", ("Round", "Of the sum"), rows, class_="figures"
    )


def _card(title: str, content: Child, *, id_: str, hint: str = "") -> Html:
    name = f"{id_}-title"
    return element(
        "section",
        element(
            "div",
            element("h2", title, id=name),
            element("p", hint, class_="hint") if hint else None,
            class_="title",
        ),
        content,
        class_="card",
        id=id_,
        aria_labelledby=name,
    )


def _document(
    picture: Picture, level: Level, body: Sequence[Child], *, path: str, held: bool, title: str
) -> bytes:
    federation = picture.federation
    name = brief(federation.name) if federation is not None else "chorale"
    whose = "chorale coordinator" if federation is not None else "coordinator"
    run = picture.run
    where = f" · round {run.line.round}/{run.line.rounds}" if run is not None else ""
    now = picture.at_unix_s
    header = element(
        "header",
        element(
            "a",
            element("span", name, class_="federation"),
            element("span", whose, class_="soft"),
            href="/",
            class_="home",
        ),
        element(
            "p",
            element("time", words.clock(now, now), datetime=words.stamp(now)),
            element("span", "held" if held else f"again in {REFRESH_S} s"),
            element("a", "go on" if held else HOLD, href=path if held else f"{path}?{HOLD}"),
            class_="state",
        ),
    )
    footer = element(
        "footer",
        element("p", "Read-only. Every figure is of a masked sum; a silo's own stay in the silo."),
        element("p", "All times are UTC."),
    )
    main = element("main", *body, id="main")
    return _html(f"{title}{where} · {name}", level, (header, main, footer), refresh=not held)


def _html(title: str, level: Level, body: Sequence[Child], *, refresh: bool) -> bytes:
    dot = quote(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
        f"<circle cx='8' cy='8' r='6' fill='{_DOT[level]}'/></svg>"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("title", title),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("meta", name_="robots", content="noindex"),
        element("meta", http_equiv="refresh", content=str(REFRESH_S)) if refresh else None,
        element("link", rel="icon", href=f"data:image/svg+xml,{dot}"),
        element("style", Html(STYLE)),
    )
    skip = element("a", "To the content", href="#main", class_="skip")
    page = element("html", head, element("body", skip, *body), lang="en")
    return joined((Html("<!doctype html>"), page)).text.encode()
