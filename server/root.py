"""The consortium root: the one key that signs rosters, kept away from the coordinator.

Used by ``chorale root init`` and ``chorale root sign``, on another machine or as another user than
the coordinator's. The coordinator's process never imports this file and never reads the root's
directory: it is given ``root.pub`` once, when its data directory is made.

Invariants:

1. The private key is written 0600 into a 0700 directory, once; it is never overwritten.
2. A roster is signed only after its members were shown and somebody said yes.

Covered: one root key. Not covered: k-of-n roots, hardware keys, passphrases.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from federation.durable import private_directory, replace_file
from secagg.roster import Roster, SignedRoster, sign_roster
from server.errors import PkiError, RootKeyError
from server.keys import create_signing_key, load_signing_key, public_key_pem
from server.roster_file import describe_roster

__all__ = ["create_root", "sign"]

KEY_NAME: Final = "root.key"
PUBLIC_NAME: Final = "root.pub"


def create_root(directory: Path) -> Path:
    """Make a root key.

    Args:
        directory: Created with mode 0700.

    Returns:
        The path of the public key, which goes to the coordinator.

    Raises:
        RootKeyError: There is a key already.
    """
    private_directory(directory)
    try:
        key = create_signing_key(directory / KEY_NAME)
    except PkiError as error:
        raise RootKeyError(str(error)) from error
    public_path = directory / PUBLIC_NAME
    replace_file(public_path, (public_key_pem(key.public_key().public_bytes_raw()),), mode=0o644)
    return public_path


def sign(roster: Roster, directory: Path, *, confirm: Callable[[str], bool]) -> SignedRoster:
    """Show a roster, ask, and sign it.

    Args:
        roster: What to sign.
        directory: The root's directory.
        confirm: Is given the description of the roster; True means yes.

    Returns:
        The signed roster.

    Raises:
        RootKeyError: The answer was no, or the key cannot be used.
    """
    if not confirm(describe_roster(roster)):
        raise RootKeyError("the roster was not confirmed, so it is not signed")
    try:
        key = load_signing_key(directory / KEY_NAME)
    except PkiError as error:
        raise RootKeyError(str(error)) from error
    return sign_roster(roster, key)
