"""The doctor's steps about who this silo is: files, keys, certificate, clock.

A missing or expired client certificate shows only as UNAVAILABLE over gRPC, so it is looked at
here, before anything is dialled.

Covered: modes, pairs of key and certificate, issuer, name, validity, a clock that is behind what
this silo wrote itself. Not covered: a clock that is wrong and always was.
"""

from __future__ import annotations

import datetime as dt
import os
import stat
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from federation.membership.invite import silo_spiffe_uri
from ops.doctor.checkup import Verdict, failed, judge_validity, ok, warning
from silo_agent.identity.identity import Identity

__all__ = ["judge_certificate", "judge_clock", "judge_directory", "judge_identity"]

SOON: Final = dt.timedelta(days=7)
CLOCK_SLACK: Final = dt.timedelta(minutes=2)
REJOIN: Final = (
    "ask the admin for a new invite (chorale invite), then chorale-silo join - with the same "
    "--data: the protocol key and the ledger stay"
)
RENEWS: Final = (
    "keep chorale-silo run running, which renews it over the network at half of its life: "
    "certificate_not_renewed in its log says why it has not; once it has ended, only a new invite "
    "helps"
)


def judge_directory(data_dir: Path) -> Verdict:
    """The data directory: what it holds is private."""
    try:
        found = data_dir.stat()
    except OSError as error:
        return failed(
            f"{data_dir} cannot be used: {error.strerror}",
            "chorale-silo join INVITE --data DIR makes it; --data or CHORALE_SILO_DATA names it",
        )
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        return failed(
            f"{data_dir} belongs to user {found.st_uid}, this is user {os.geteuid()}",
            f"run this as the daemon's user, or chown -R {os.geteuid()} {data_dir}",
        )
    if not stat.S_ISDIR(found.st_mode) or not os.access(data_dir, os.W_OK | os.X_OK):
        return failed(
            f"{data_dir} cannot be written, or is no directory",
            f"chmod u+rwx {data_dir}, or remount it rw",
        )
    if mode & 0o007:
        return failed(
            f"{data_dir} has mode {mode:04o}: every user can look into it", f"chmod 700 {data_dir}"
        )
    if mode & 0o070:
        return warning(
            f"{data_dir} has mode {mode:04o}: its group can look into it",
            f"chmod 700 {data_dir}, unless the group is the daemon's alone",
        )
    return ok(f"{data_dir}, mode {mode:04o}")


def judge_identity(mine: Identity) -> Verdict:
    """Whether key, certificate, CA and names belong together.

    Loading has refused key files that other users can read.
    """
    if mine.leaf.public_key() != mine.leaf_key.public_key():
        return failed("identity/leaf.key is not the key of identity/leaf.pem", REJOIN)
    try:
        mine.leaf.verify_directly_issued_by(mine.ca)
    except (InvalidSignature, ValueError, TypeError):
        return failed("identity/leaf.pem was not issued by identity/ca.pem", REJOIN)
    names = mine.leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if uris != [silo_spiffe_uri(mine.federation, mine.silo_id)]:
        return failed(
            f"the certificate names {', '.join(uris)[:200]}, this is {mine.silo_id} of "
            f"{mine.federation}",
            REJOIN,
        )
    return ok(f"{mine.silo_id} of {mine.federation}, keys closed to others, certificate its own")


def judge_certificate(mine: Identity, now: dt.datetime) -> Verdict:
    """Validity of the certificate and of its CA."""
    of_ca = judge_validity(
        "the federation's CA",
        mine.ca,
        now=now,
        soon=SOON,
        renew="ask the admin: chorale ca rotate",
    )
    if of_ca.fix:
        return of_ca
    valid = mine.leaf.not_valid_before_utc <= now < mine.leaf.not_valid_after_utc
    renew = RENEWS if valid else REJOIN
    return judge_validity("the certificate", mine.leaf, now=now, soon=SOON, renew=renew)


def judge_clock(data_dir: Path, mine: Identity, now: dt.datetime) -> Verdict:
    """The clock against what this silo wrote, and what the coordinator certified."""
    set_it = "set the clock: timedatectl set-ntp true"
    names = ("state.json", "privacy.ledger", "identity/leaf.pem", "silo.toml")
    written = {
        name: dt.datetime.fromtimestamp((data_dir / name).stat().st_mtime, dt.UTC)
        for name in names
        if (data_dir / name).exists()
    }
    newest = max(written, key=lambda name: written[name], default=None)
    if newest is not None and written[newest] > now + CLOCK_SLACK:
        return failed(
            f"the clock says {_shown(now)}, and {newest} was written at {_shown(written[newest])}",
            set_it,
        )
    if now < mine.leaf.not_valid_before_utc:
        return failed(
            f"the clock says {_shown(now)}, before the coordinator issued the certificate "
            f"({_shown(mine.leaf.not_valid_before_utc)})",
            set_it,
        )
    return ok(
        f"{_shown(now)}, not behind anything written here or certified; no other clock was asked"
    )


def _shown(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
