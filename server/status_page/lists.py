"""The lists of the page: published adapters, runs, silos.

Invariants:

1. Each list is bounded, and says how many it leaves out and which command shows them.
2. Of a silo there is what a relay knows and nothing else.
3. An empty list says what makes it grow.

Covered: any number of rows. Not covered: their order, which the picture has.
"""

from __future__ import annotations

from typing import Final

from server.status_page import words
from server.status_page.markup import Child, Html, brief, element, joined, moment, path_of, table
from server.status_page.picture import Adapter, Invitation, Picture, RunLine, RunView, SiloView
from server.store.runs import ACTIVE, RunState
from server.store.silos import SiloState

__all__ = ["adapters", "runs", "silos"]

SHOWN_SILOS: Final = 200
SHORT_HEX: Final = 12
WEEK_S: Final = 7 * 86400
NOT_POST_QUANTUM: Final = "suite v1: not post-quantum"
_BAD_STATES: Final = frozenset({RunState.FAILED})
_TAKES_PART: Final = frozenset({SiloState.ROSTERED, SiloState.SITTING_OUT, SiloState.ENROLLED})


def adapters(run: RunView, *, most: int) -> Html:
    """Which adapter each round ended with, newest first, at most ``most`` of them."""
    shown = list(reversed(run.adapters[-most:]))
    older = bool(shown) and shown[-1].round > 0
    return joined(
        (
            table(
                "Adapters, newest first",
                ("Round", "SHA-256", "How"),
                [_adapter(one, run.steps) for one in shown],
                class_="adapters",
            ),
            element(
                "p",
                "older ones: ",
                element("code", f"chorale adapter list {brief(run.line.run_id)}"),
                class_="hint",
            )
            if older
            else None,
        )
    )


def runs(picture: Picture) -> Html:
    """The queue: what is driven, what waits, what is over."""
    if not picture.runs:
        name = picture.federation.name if picture.federation is not None else "FEDERATION"
        return element(
            "p",
            "No run yet. ",
            element("code", "chorale run plan plan.toml"),
            " says what one would cost, ",
            element("code", f"chorale run start plan.toml -f {name}"),
            " starts it.",
            class_="empty",
        )
    return joined(
        (
            table(
                "Runs: driven, queued, paused, over",
                ("Run", "State", "Rounds"),
                [_run(line, picture.at_unix_s) for line in picture.runs],
                class_="runs stacked",
            ),
            element("p", f"{picture.older_runs} more: ", element("code", "chorale run list"),
                    class_="hint")
            if picture.older_runs
            else None,
        )
    )  # fmt: skip


def silos(picture: Picture) -> Html:
    """Who is there, those that need a look first."""
    if not picture.silos and not picture.invitations:
        name = picture.federation.name if picture.federation is not None else "FEDERATION"
        return element(
            "p",
            "No silo yet. ",
            element("code", f"chorale invite {name} hospital-a --ttl 24h"),
            " prints the line that its operator pastes.",
            class_="empty",
        )
    rows = [_silo(silo, picture.at_unix_s) for silo in picture.silos[:SHOWN_SILOS]]
    left = SHOWN_SILOS - len(rows)
    rows += [_invitation(one, picture.at_unix_s) for one in picture.invitations[:left]]
    more = len(picture.silos) + len(picture.invitations) - len(rows)
    return joined(
        (
            table(
                "Silos, those that need a look first",
                ("Silo", "State", "Last heard of", "Certificate ends"),
                rows,
                class_="silos stacked",
            ),
            element("p", f"{more} more: ", element("code", "chorale silo list"), class_="hint")
            if more
            else None,
        )
    )


def _pill(text: str, level: str) -> Html:
    return element("span", text, class_=f"pill {level}")


def _adapter(one: Adapter, steps: int) -> tuple[Child, ...]:
    where = f"{one.round}, step {one.step + 1}" if steps > 1 and one.round else str(one.round)
    ways: dict[str, Child] = {
        "initial": "the one that the run began with",
        "aggregated": f"sum of {one.survivors}",
        "skipped": joined((_pill("skipped", "watch"), " the one before")),
        "rollback": _pill(f"back to round {one.restored_round}", "watch"),
    }
    digest = element("code", one.sha256[:SHORT_HEX], title=one.sha256)
    return where, digest, ways.get(one.kind, one.kind)


def _run(line: RunLine, now_unix_s: float) -> tuple[Child, ...]:
    level = "bad" if line.state in _BAD_STATES else "good" if line.state in ACTIVE else "plain"
    state: list[Child] = [_pill(line.state.value, level)]
    if line.since_unix_s:
        state += [" ", moment(line.since_unix_s, now_unix_s, absolute=False)]
    if line.behind:
        state.append(element("p", f"behind {brief(line.behind)}", class_="notes"))
    if not line.post_quantum:
        state.append(element("p", NOT_POST_QUANTUM, class_="notes"))
    if line.error:
        state.append(element("p", brief(line.error, max_chars=300), class_="notes"))
    return (
        element("a", brief(line.run_id), href=path_of(line.run_id)),
        joined(state),
        f"{line.round} of {line.rounds or words.UNKNOWN}",
    )


def _silo(silo: SiloView, now_unix_s: float) -> tuple[Child, ...]:
    level = "plain"
    if silo.state is SiloState.ROSTERED:
        level = "good" if silo.alive else "watch"
    elif silo.state is SiloState.SITTING_OUT:
        level = "watch"
    state: list[Child] = [_pill(silo.state.value.replace("_", " "), level)]
    if silo.state is SiloState.ROSTERED and not silo.alive:
        state.append(element("span", " silent", class_="warn"))
    if silo.waited:
        state.append(" waited for")
    end = moment(silo.certificate_end_unix_s, now_unix_s)
    near = silo.state in _TAKES_PART and silo.certificate_end_unix_s < now_unix_s + WEEK_S
    return (
        brief(silo.silo_id),
        joined(state),
        moment(silo.last_seen_unix_s, now_unix_s),
        element("span", end, class_="warn") if near else end,
    )


def _invitation(one: Invitation, now_unix_s: float) -> tuple[Child, ...]:
    over = one.end_unix_s <= now_unix_s
    ends = moment(one.end_unix_s, now_unix_s, absolute=False)
    state = joined(
        (
            _pill(SiloState.INVITED.value, "plain"),
            " the invite ended " if over else " the invite ends ",
            ends,
        )
    )
    return brief(one.silo_id), state, words.ago(0, now_unix_s), words.UNKNOWN
