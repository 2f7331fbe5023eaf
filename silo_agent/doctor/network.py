"""The doctor's steps about the line to the coordinator: name, port, handshake, call, roster.

Covered: each of them alone, with what the server presented; a coordinator of another version; a
roster that is older than the newest one seen, signed by another root, or without this silo. Not
covered: proxies.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from federation.version import Version, this_version
from ops.doctor.checkup import Verdict, failed, ok, warning
from ops.doctor.reach import (
    ClientPair,
    HandshakeError,
    ReachError,
    Stage,
    connect,
    resolve,
    shake_hands,
    split_host_port,
)
from secagg.errors import SecAggError
from secagg.roster import SignedRoster, follow_rosters
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import TransportError
from silo_agent.identity.identity import DIRECTORY, Identity
from silo_agent.identity.renewal import missing_with
from silo_agent.line.channel import CALL_TIMEOUT_S
from silo_agent.line.transport import Coordinator

__all__ = [
    "Called",
    "call_roster",
    "judge_name",
    "judge_roster",
    "judge_tcp",
    "judge_tls",
    "judge_versions",
]

TIMEOUT_S: Final = 5.0
NOT_PUBLISHED: Final = "not_published"


def judge_name(mine: Identity) -> Verdict:
    """Whether the coordinator's name has an address."""
    host, _ = split_host_port(mine.coordinator_address)
    try:
        addresses = resolve(host)
    except ReachError as error:
        return failed(
            str(error),
            f"ask your network's people to resolve {host}, or the admin which name is right",
        )
    return ok(f"{host} is {', '.join(addresses)}")


def judge_tcp(mine: Identity) -> Verdict:
    """Whether the coordinator's port answers."""
    try:
        connect(mine.coordinator_address, timeout_s=TIMEOUT_S)
    except ReachError as error:
        return failed(
            str(error),
            f"allow outbound TCP to {mine.coordinator_address} in the firewall; if it is allowed, "
            "ask the admin whether chorale-coordinator serve runs",
        )
    return ok(f"{mine.coordinator_address} answers")


def judge_tls(mine: Identity, data_dir: Path, now: dt.datetime) -> Verdict:
    """Shake hands: the server's chain against the pinned CA, and our certificate taken."""
    host, _ = split_host_port(mine.coordinator_address)
    directory = data_dir / DIRECTORY
    try:
        version = shake_hands(
            mine.coordinator_address,
            server_name=host,
            trusted=(mine.ca, *mine.also_trusted),
            client=ClientPair(certificate=directory / "leaf.pem", key=directory / "leaf.key"),
            timeout_s=TIMEOUT_S,
        )
    except HandshakeError as error:
        return failed(f"{error} ({error.stage.value}){_validity(error, now)}", _FIXES[error.stage])
    except ReachError as error:
        return failed(str(error), "try again; the port answered a moment ago")
    return ok(f"{version}, the server's chain ends at a CA that this silo trusts and names {host}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """What one authenticated call brought."""

    verdict: Verdict
    rosters: tuple[SignedRoster, ...] = ()
    """The published roster if there is one, after those that it follows from."""
    version: Version | None = None
    """What the coordinator says that it runs; None if it did not answer."""


def call_roster(mine: Identity) -> Called:
    """One authenticated call: the published roster."""
    coordinator = Coordinator(
        address=mine.coordinator_address, credentials=mine.channel_credentials(), patience_s=0.0
    )
    rosters: tuple[SignedRoster, ...] = ()
    try:
        rosters = coordinator.rosters(0)
    except TransportError as error:
        if error.reason == NOT_PUBLISHED:
            verdict = ok("the coordinator knows this silo; no roster is published yet")
        elif error.late:
            verdict = failed(
                f"the coordinator was reached, and did not answer within {CALL_TIMEOUT_S:.0f} s",
                "it or the line is slow, not this silo: ask the admin to look at its load, disk "
                "and database (chorale doctor); then at what a proxy or a shaped line in between "
                "lets through. The daemon goes on asking by itself",
            )
        elif not error.reason:
            verdict = failed(
                f"the port and TLS are in order, and the call failed: {error}",
                "try again: the coordinator may just have been stopped; if it stays so, ask the "
                "admin for its log",
            )
        else:
            verdict = failed(
                f"the coordinator refused: {error.reason}: {error}",
                _REFUSALS.get(
                    error.reason, "ask the admin: chorale silo list shows this silo's state"
                ),
            )
    else:
        verdict = ok("the coordinator knows this silo and answered with its roster")
    finally:
        coordinator.close()
    return Called(verdict=verdict, rosters=rosters, version=coordinator.version)


def judge_versions(mine: Identity, theirs: Version | None) -> Verdict:
    """What runs here, what runs there if it answered, and what that means."""
    ours = this_version()
    if theirs is None:
        return ok(f"this silo runs chorale {ours}; the coordinator has not answered")
    both = f"this silo runs chorale {ours}, the coordinator {theirs}"
    if not ours.agrees_with(theirs):
        behind = "this silo" if ours.newest < theirs.newest else "the coordinator"
        return failed(f"{both}: they have no protocol in common", f"upgrade {behind}")
    missing = missing_with(theirs, mine)
    if missing:
        return warning(f"{both}: {missing}", "ask the admin to upgrade the coordinator")
    return ok(both)


def judge_roster(mine: Identity, store: LocalStore, rosters: tuple[SignedRoster, ...]) -> Verdict:
    """Signature or approvals, epoch and membership of the published roster, the last of them."""
    newest = store.newest_roster_epoch()
    if not rosters:
        if newest:
            return failed(
                f"no roster is published, and this silo has seen epoch {newest}",
                "the coordinator has lost its database, or is another one: ask the admin, and do "
                "not delete state.json",
            )
        return warning(
            "no roster is published yet: no run can begin",
            "the admin proposes one, the root signs it: chorale roster propose",
        )
    try:
        # From the one that this silo accepted last, or from the root's if that is newer.
        since = tuple(one for one in rosters if one.roster.epoch >= newest) or rosters[-1:]
        roster = follow_rosters(since, mine.root_key, newest, store.newest_roster_sha256())
    except SecAggError as error:
        return failed(
            f"the published roster is refused: {error}",
            "ask the admin: it is older than one this silo has seen, or the root that was pinned "
            "when this silo joined did not sign it",
        )
    if roster.federation != mine.federation:
        return failed(f"the roster is of {roster.federation}", "ask the admin which it should be")
    if mine.silo_id not in roster.silo_ids:
        return warning(
            f"roster epoch {roster.epoch} does not list {mine.silo_id}: it takes part in no run",
            "the admin proposes the next roster: chorale roster propose",
        )
    return ok(
        f"epoch {roster.epoch} (newest seen: {newest or 'none'}), {len(roster.entries)} silos, "
        + ("approved by its members" if since[-1].approvals else "signed by the pinned root")
    )


def _validity(error: HandshakeError, now: dt.datetime) -> str:
    """When the server's certificate is valid, beside this clock; a hint at a wrong one."""
    if error.leaf is None or error.stage not in {Stage.EXPIRED, Stage.NOT_YET_VALID}:
        return ""
    begins, ends = error.leaf.not_valid_before_utc, error.leaf.not_valid_after_utc
    return f": it is valid from {begins:%F %R} to {ends:%F %R}, this clock says {now:%F %R} UTC"


_FIXES: Final = {
    Stage.CLIENT: (
        "the certificate is valid here, so the coordinator's clock differs or its CA was replaced: "
        "ask the admin for a new invite"
    ),
    Stage.UNTRUSTED: (
        "the server is not the one this silo joined, or somebody is in between: ask the admin; "
        "after a move to another CA, join again with a new invite"
    ),
    Stage.NAME: "the server's certificate does not name this host: ask the admin to add it",
    Stage.EXPIRED: (
        "set this machine's clock (timedatectl set-ntp true); if it is right, the admin restarts "
        "chorale-coordinator serve, which renews its certificate"
    ),
    Stage.NOT_YET_VALID: "set this machine's clock: timedatectl set-ntp true",
    Stage.NO_TLS: "another program, or a proxy, answers there: ask the admin for host and port",
}
_REFUSALS: Final = {
    "certificate_revoked": "ask the admin why; a new invite lets this silo join again",
    "certificate_expired": "ask the admin for a new invite and join again",
    "silo_suspended": "ask the admin why: chorale silo reinstate ends it",
    "version_mismatch": "upgrade the side that the text names",
    "foreign_federation": "this directory joined another federation: check --data",
}
