"""The consortium root: the one key that signs rosters, kept away from the coordinator.

Used by ``chorale root init`` and ``chorale root sign``, on another machine or as another user than
the coordinator's. The coordinator's process never imports this file and never reads the root's
directory: it is given ``root.pub`` once, when its data directory is made.

Invariants:

1. The private key is written 0600 into a 0700 directory, once; it is never overwritten.
2. A roster is shown before it is signed, and signed only if somebody says yes, or has given c and
   the fingerprint of every member's key as the member reports it: with a smaller c the coordinator
   and fewer silos see through the masks.
3. A fingerprint or c that was given and is another one, or a silo's that is not in the roster,
   refuses the whole roster, whatever else was said.

Covered: one root key, with or without a passphrase. Not covered: k-of-n roots, hardware keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from federation.membership.roster_change import fingerprint
from federation.text import printable
from ops.files import private_directory, replace_file
from secagg.roster import Roster, SignedRoster, sign_roster
from server.errors import PkiError, RootKeyError
from server.members.roster_file import describe_roster
from server.pki.keys import create_signing_key, is_encrypted, load_signing_key, public_key_pem

__all__ = ["create_root", "sign"]

KEY_NAME: Final = "root.key"
PUBLIC_NAME: Final = "root.pub"


def create_root(directory: Path, *, passphrase: bytes | None = None) -> Path:
    """Make a root key in a directory of mode 0700, encrypted if there is a passphrase.

    The path that is returned is that of the public key, which goes to the coordinator.

    Raises:
        RootKeyError: There is a key already.
    """
    private_directory(directory)
    try:
        key = create_signing_key(directory / KEY_NAME, passphrase=passphrase)
    except PkiError as error:
        raise RootKeyError(str(error)) from error
    public_path = directory / PUBLIC_NAME
    replace_file(public_path, (public_key_pem(key.public_key().public_bytes_raw()),), mode=0o644)
    return public_path


def sign(
    roster: Roster,
    directory: Path,
    *,
    show: Callable[[str], None],
    confirm: Callable[[], bool],
    expected: Mapping[str, str] | None = None,
    colluding: int | None = None,
    passphrase: Callable[[], bytes | None] = lambda: None,
) -> SignedRoster:
    """Compare a roster with what its members report, show it, ask, and sign it.

    ``show`` is given the description of the roster, ``confirm`` says yes by True, and
    ``passphrase`` is called if the key is encrypted. ``expected`` has fingerprints by silo, from
    another channel than the coordinator, and ``colluding`` is the c that the members agreed on:
    with it and every member's fingerprint nobody is asked.

    Raises:
        RootKeyError: A fingerprint or c is another one, the answer was no, or the key cannot be
            used.
    """
    expected = expected or {}
    show(describe_roster(roster))
    _require_expected(roster, expected)
    if colluding not in {None, roster.colluding}:
        raise RootKeyError(
            f"the roster lets {roster.colluding} silos collude, not {colluding}: nothing is signed"
        )
    compared = colluding is not None and expected.keys() == set(roster.silo_ids)
    if not compared and not confirm():
        raise RootKeyError("the roster was not confirmed, so it is not signed")
    try:
        path = directory / KEY_NAME
        key = load_signing_key(path, passphrase=passphrase() if is_encrypted(path) else None)
    except PkiError as error:
        raise RootKeyError(str(error)) from error
    return sign_roster(roster, key)


def _require_expected(roster: Roster, expected: Mapping[str, str]) -> None:
    for silo_id, reported in expected.items():
        entry = roster.entry(silo_id)
        if entry is None:
            raise RootKeyError(f"{silo_id} is not in this roster: nothing is signed")
        found = fingerprint(entry.verification_key)
        if reported.replace(":", "").lower() != found.replace(":", ""):
            raise RootKeyError(
                f"the roster has another key for {silo_id} than was expected: {found}, not "
                f"{printable(reported, max_chars=80)}. Nothing is signed; ask {silo_id} what "
                "chorale-silo status says"
            )
