"""The federation's terms, what proves them, and the way from nothing to the first run.

Covered: every stage of founding, with the command that comes next. Not covered: silos and runs
(``lists.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from server.status_page import words
from server.status_page.markup import Child, Html, brief, element, moment
from server.status_page.picture import Picture
from server.store.silos import SiloState

__all__ = ["facts", "first_steps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    title: str
    said: str
    commands: tuple[str, ...]
    done: bool


def facts(picture: Picture) -> Html:
    """Terms, roster, audit log, versions, certificates."""
    now = picture.at_unix_s
    pairs: list[tuple[str, Child]] = []
    terms = picture.federation
    if terms is not None:
        cap = "left to plans and silos" if terms.epsilon_cap is None else f"{terms.epsilon_cap:g}"
        pairs += [
            ("Federation", brief(terms.name)),
            (
                "Terms",
                (
                    f"at least {terms.min_silos} silos, of which {terms.colluding} may collude; "
                    f"ε of a run at most: {cap}; δ at most {terms.delta:g}"
                ),
            ),
        ]
    if picture.roster_epoch:
        pairs.append(
            (
                "Roster in force",
                (
                    f"epoch {picture.roster_epoch}: {picture.roster_silos} silos, "
                    f"{picture.roster_colluding} may collude"
                ),
            )
        )
    audit = picture.audit
    pairs += [
        (
            "Audit head",
            element("span", "cannot be read", class_="warn")
            if audit is None
            else element(
                "span",
                f"record {audit.index}, ",
                element("code", audit.sha256[:16], title=audit.sha256),
            ),
        ),
        ("Version", f"chorale {picture.version}"),
        ("Issuing CA ends", moment(picture.ca_end_unix_s, now)),
        ("Server certificate ends", moment(picture.server_certificate_end_unix_s, now)),
    ]
    if picture.disk_bytes:
        free, size = picture.disk_free_bytes, picture.disk_bytes
        pairs.append(("Disk free", f"{words.byte_count(free)} of {words.byte_count(size)}"))
    return element(
        "dl",
        *(element("div", element("dt", name), element("dd", value)) for name, value in pairs),
        class_="facts",
    )


def first_steps(picture: Picture) -> Html | None:
    """What is done on the way to the first run, and what comes next; None once there was a run."""
    if picture.run is not None:
        return None
    terms = picture.federation
    name = terms.name if terms is not None else "oncology"
    least = terms.min_silos if terms is not None else 3
    joined = sum(silo.state in {SiloState.ENROLLED, SiloState.ROSTERED} for silo in picture.silos)
    invited = len(picture.invitations)
    steps = (
        _Step(
            title="Agree on the terms",
            said="How many silos at least, how many may collude, how much ε. They stay for good.",
            commands=(
                (
                    "chorale federation create oncology --min-silos 3 --colluding 1 "
                    "--epsilon-cap 8 --delta 1e-5"
                ),
            ),
            done=terms is not None,
        ),
        _Step(
            title="Invite the silos",
            said=f"{joined} of at least {least} joined"
            + (f", {invited} invited." if invited else ". Each invite is one line to paste, once."),
            commands=(f"chorale invite {name} hospital-a --ttl 24h",),
            done=joined >= least or picture.roster_epoch > 0,
        ),
        _Step(
            title="Publish a roster",
            said="The root signs who may be in a sum; compare the keys' fingerprints before.",
            commands=(
                "chorale roster propose",
                "chorale root sign roster.json --dir ROOT_DIR",
                "chorale roster publish roster.signed.json",
            ),
            done=picture.roster_epoch > 0,
        ),
        _Step(
            title="Start a run",
            said="The first command says what it costs and who would refuse; the second begins.",
            commands=(
                "chorale run plan plan.toml",
                f"chorale run start plan.toml -f {name}",
            ),
            done=False,
        ),
    )
    upcoming = next(step for step in steps if not step.done)
    return element(
        "section",
        element("h2", "To the first run", id="steps"),
        element(
            "ol",
            *(_step(step, upcoming=step is upcoming) for step in steps),
            class_="steps",
        ),
        class_="card",
        aria_labelledby="steps",
    )


def _step(step: _Step, *, upcoming: bool) -> Html:
    state = "done" if step.done else "next" if upcoming else "later"
    return element(
        "li",
        element(
            "h3",
            step.title,
            element("span", state, class_=f"pill {'good' if step.done else 'plain'}")
            if state != "later"
            else None,
        ),
        element("p", step.said),
        element("pre", element("code", *_lines(step.commands))) if upcoming else None,
        class_=state,
    )


def _lines(commands: tuple[str, ...]) -> list[Child]:
    lines: list[Child] = []
    for command in commands:
        # Text is one line each; a line between two is made here.
        lines += [element("br"), command] if lines else [command]
    return lines
