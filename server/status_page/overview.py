"""The first screen: is it well, who are we waiting for, how far, what is spent.

Invariants: whatever the state, each of the four is answered in words; a bar never says what the
words beside it do not; what has no end says so.

Covered: every state of a run, no run, no roster. Not covered: what is judged (``verdict.py``).
"""

from __future__ import annotations

import math
from typing import Final

from dp.config import ADJACENCY, Mode
from server.figures import Phase
from server.status_page import words
from server.status_page.markup import Child, Html, brief, element, joined, lasting, moment, path_of
from server.status_page.picture import Current, Picture, RunView, Waited
from server.status_page.verdict import SPENT_SHARE, Concern, Level, Verdict
from server.store.runs import RunState
from server.store.silos import SiloState

__all__ = ["banner", "headline", "run_banner", "tiles"]

NAMED: Final = 4
"""Silos that are named in a tile."""
_HEADLINES: Final = {
    Level.WELL: "All is well",
    Level.SETUP: "Nothing runs yet",
    Level.WATCH: "Worth a look",
    Level.ALARM: "Someone is needed",
}
_SYMBOLS: Final = {
    Level.WELL: ("M12 3a9 9 0 1 0 0 18a9 9 0 0 0 0-18", "M8 12.4l2.8 2.8L16.2 9.4"),
    Level.SETUP: ("M12 3a9 9 0 1 0 0 18a9 9 0 0 0 0-18", "M8 12h8"),
    Level.WATCH: ("M12 3.6L2.9 20h18.2z", "M12 10v4.4m0 2.6v.1"),
    Level.ALARM: ("M8.3 3h7.4L21 8.3v7.4L15.7 21H8.3L3 15.7V8.3z", "M12 7.6v5.2m0 3.4v.1"),
}


def headline(level: Level) -> str:
    """The verdict in a few words."""
    return _HEADLINES[level]


def _symbol(level: Level) -> Html:
    """A sign whose shape says as much as its colour."""
    outline, sign = _SYMBOLS[level]
    return element(
        "svg",
        element("path", d=Html(outline)),
        element("path", d=Html(sign)),
        class_="symbol",
        viewBox="0 0 24 24",
        aria_hidden="true",
    )


def banner(picture: Picture, verdict: Verdict) -> Html:
    """Whether it is well, and what is going on."""
    concerns = [_concern(concern) for concern in verdict.concerns]
    return element(
        "section",
        _symbol(verdict.level),
        element(
            "div",
            element("h1", headline(verdict.level), id="verdict"),
            element("p", *_doing(picture)),
            _left_out(picture.run),
            element("ul", *concerns, class_="concerns") if concerns else None,
        ),
        class_=f"banner {verdict.level.value}",
        aria_labelledby="verdict",
    )


def _left_out(run: RunView | None) -> Html | None:
    """Who may take no part: without noise, cohorts that vary can be subtracted."""
    if run is None or not run.kept_out:
        return None
    silos = words.named(list(run.kept_out), most=NAMED)
    return element("p", f"Not asked in this run any more: {silos}.", class_="hint")


def run_banner(picture: Picture, run: RunView) -> Html:
    """Which run this is, and what it does or did."""
    error = run.line.error
    return element(
        "section",
        element(
            "div",
            element("h1", f"Run {brief(run.line.run_id)}", id="verdict"),
            element("p", *_doing(picture)),
            _left_out(run),
            element("p", brief(error, max_chars=400), class_="warn") if error else None,
            element("p", element("a", "the coordinator", href="/")),
        ),
        class_="banner setup",
        aria_labelledby="verdict",
    )


def tiles(picture: Picture) -> Html:
    """Who is waited for, how far it is, what is spent, who is there."""
    run = picture.run
    return element(
        "section",
        element("h2", "At a glance", class_="hidden", id="glance"),
        *(
            (_waiting(picture, run), _progress(picture, run), _spent(run))
            if run is not None
            else ()
        ),
        _present(picture),
        class_="tiles",
        aria_labelledby="glance",
    )


def _concern(concern: Concern) -> Html:
    return element(
        "li",
        element("strong", brief(concern.what, max_chars=400)),
        element(
            "span",
            f"{concern.advice} " if concern.advice else None,
            element("code", concern.command) if concern.command else None,
            class_="advice",
        ),
        element("span", "runbook ", element("code", concern.alert), class_="runbook")
        if concern.alert
        else None,
        class_=concern.level.value,
    )


def _doing(picture: Picture) -> list[Child]:
    run, now = picture.run, picture.at_unix_s
    if run is None:
        return ["This coordinator has no run. What to do next is below."]
    line = run.line
    if run.current is not None:
        current = run.current
        pausing = " It is paused after this round." if line.state is RunState.PAUSING else ""
        if current.phase == Phase.FINISHED.value:
            return [
                f"Round {current.round} of {line.rounds} is closed; the next one opens.",
                pausing,
            ]
        waited = words.named([one.silo_id for one in current.waited], most=NAMED)
        return [
            f"Round {current.round} of {line.rounds}: ",
            element("code", current.phase),
            f" for {words.span(now - current.since_unix_s)}, ",
            f"waiting for {waited}." if waited else "the coordinator is at work.",
            pausing,
        ]
    for_s = words.span(now - line.since_unix_s) if line.since_unix_s else ""
    since = f" {for_s} ago" if for_s else ""
    said = {
        RunState.QUEUED: f"waits for its turn{f' behind {line.behind}' if line.behind else ''}.",
        RunState.PAUSED: f"is paused{f' for {for_s}' if for_s else ''} and waits for an admin.",
        RunState.FINISHED: f"finished its {line.rounds} rounds{since}.",
        RunState.ABORTED: f"was aborted{since}.",
        RunState.FAILED: f"failed{since}.",
    }.get(line.state, "is about to go on.")
    return ["Run ", element("code", brief(line.run_id)), f" {said}"]


def _tile(title: str, big: Child, *rest: Child) -> Html:
    return element(
        "div", element("h2", title), element("p", big, class_="big"), *rest, class_="tile"
    )


def _waiting(picture: Picture, run: RunView) -> Html:
    current = run.current
    if current is None:
        if run.line.state is RunState.PAUSED:
            command = f"chorale run resume {run.line.run_id}"
            return _tile(
                "Waiting for", "an admin", element("p", element("code", command)), _without_end()
            )
        if run.line.state is RunState.QUEUED:
            behind = brief(run.line.behind) or "the run before it"
            return _tile("Waiting for", "its turn", element("p", f"behind {behind}"))
        return _tile("Waiting for", "nobody", element("p", "no run is driven now", class_="soft"))
    if not current.waited:
        return _tile(
            "Waiting for",
            "nobody",
            element("p", "the coordinator is at work", class_="soft"),
            _since(picture, current),
        )
    count = len(current.waited)
    big = brief(current.waited[0].silo_id) if count == 1 else f"{count} silos"
    # Who is silent is who to call.
    first = sorted(current.waited, key=lambda one: (one.alive, one.silo_id))
    rows = [
        element(
            "li",
            element("span", brief(one.silo_id), class_="name") if count > 1 else None,
            _heard(one, picture.at_unix_s),
        )
        for one in first[:NAMED]
    ]
    more = count - NAMED
    return _tile(
        "Waiting for",
        big,
        element(
            "ul",
            *rows,
            element("li", element("a", f"and {more} more", href="#silos")) if more > 0 else None,
            class_="waited",
        ),
        _since(picture, current),
    )


def _heard(one: Waited, now_unix_s: float) -> Html:
    seen = one.last_seen_unix_s
    if one.alive:
        said = f"heard {words.ago(seen, now_unix_s)}" if seen else "not heard of yet"
        return element("span", said, class_="soft")
    for_s = f"silent for {words.span(now_unix_s - seen)}"
    said = for_s if seen else "never heard of"
    return element("span", said, class_="warn")


def _since(picture: Picture, current: Current) -> Html:
    now = picture.at_unix_s
    parts: list[Child] = [lasting(current.since_unix_s, now)]
    if current.deadline_unix_s:
        late = current.deadline_unix_s < now
        parts += [
            element("br"),
            "deadline passed " if late else "deadline ",
            moment(current.deadline_unix_s, now),
        ]
    return element("p", *parts, class_="soft")


def _without_end() -> Html:
    return element("p", "without a deadline", class_="soft")


def _progress(picture: Picture, run: RunView) -> Html:
    line, current = run.line, run.current
    number = line.round if current is None else max(current.round, line.round)
    step = f", step {current.step + 1} of {run.steps}" if current and run.steps > 1 else ""
    parts: list[Child] = [
        _meter(line.round / line.rounds if line.rounds else 0.0),
        element(
            "p",
            element("a", brief(line.run_id), href=path_of(line.run_id)),
            f" is {line.state.value}{step}",
        ),
    ]
    if run.rollback_to is not None:
        parts.append(
            element("p", f"next: back to the adapter of round {run.rollback_to}", class_="warn")
        )
    if line.since_unix_s:
        parts.append(element("p", lasting(line.since_unix_s, picture.at_unix_s), class_="soft"))
    return _tile(
        "Round",
        joined((str(number), element("span", f" of {line.rounds}", class_="of"))),
        *parts,
    )


def _spent(run: RunView) -> Html:
    said = f"{run.unit}-level, δ = {run.delta:g}, {ADJACENCY}, mode {run.mode}"
    releases = f"{run.charged} of {run.charged_most} charged releases"
    if run.mode == Mode.NONE.value:
        return _tile(
            "Privacy spent",
            "no noise" if run.charged else words.number(run.epsilon_spent),
            element("p", "mode none: masks hide each silo, no ε protects what the sum tells"),
            element("p", releases, class_="soft"),
        )
    share = run.epsilon_spent / run.epsilon_cap
    level = "bad" if share > 1 else "warn" if share > SPENT_SHARE else "good"
    return _tile(
        "Privacy spent",
        joined(
            (
                f"ε {words.number(run.epsilon_spent)}",
                element("span", f" of {words.number(run.epsilon_cap)}", class_="of"),
            )
        ),
        _meter(share if math.isfinite(share) else 1.0, level=level, tick=SPENT_SHARE),
        element("p", f"{words.percent(share)} of the run's cap; {releases}"),
        element("p", said, class_="soft"),
    )


def _present(picture: Picture) -> Html:
    rostered = [silo for silo in picture.silos if silo.state is SiloState.ROSTERED]
    alive = sum(silo.alive for silo in rostered)
    others = [
        f"{count} {state.value.replace('_', ' ')}"
        for state in SiloState
        if state is not SiloState.ROSTERED
        and (
            count := len(picture.invitations)
            if state is SiloState.INVITED
            else sum(silo.state is state for silo in picture.silos)
        )
    ]
    least = picture.run.least if picture.run is not None else 0
    return _tile(
        "Silos heard of",
        joined((str(alive), element("span", f" of {len(rostered)}", class_="of"))),
        _meter(
            alive / len(rostered) if rostered else 0.0,
            level="good" if alive == len(rostered) else "warn",
        ),
        element("p", f"a round needs {least}" if least else "in the roster in force"),
        element("p", ", ".join(others), class_="soft") if others else None,
    )


def _meter(share: float, *, level: str = "plain", tick: float | None = None) -> Html:
    """A bar from none to all; what it says stands in words beside it."""
    return element(
        "svg",
        element("rect", class_="track", width=1000, height=10),
        element("rect", class_=level, width=1000 * min(1.0, max(0.0, share)), height=10),
        element("path", class_="tick", d=Html(f"M{1000 * tick:.0f} 0V10")) if tick else None,
        class_="meter",
        viewBox="0 0 1000 10",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
