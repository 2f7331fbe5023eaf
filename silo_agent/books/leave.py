"""Leaving a federation: what the coordinator is told, what is deleted.

Invariants:

1. The mark (``silo_agent/books/departure.py``) is on disk before the coordinator is told anything:
   this silo leaves also where nobody can be reached.
2. Nothing is deleted under a daemon that runs, nor in a directory that is not a silo's. The ledger
   and the audit log stay unless they are asked for by name, for they prove what was spent and said.
   ``spent.json`` always stays: what was spent outlives the ledger (``silo_agent/books/spent.py``).
3. What a link leads to is not deleted, and is named: it may be a disk that others use.

Covered: the call, the deletion. Not covered: the roster, which names this silo until the consortium
signs another; copies that others hold of what this silo sent.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from chorale.v1 import membership_pb2, membership_pb2_grpc
from federation.version import this_version
from ops.files import sync_directory
from silo_agent.books.audit import AUDIT_FILE
from silo_agent.books.audit_heads import HEAD_FILE
from silo_agent.books.departure import MARK
from silo_agent.books.facts import FACTS_FILE
from silo_agent.books.ledger_copy import LEDGER_FILE
from silo_agent.books.preflights import PREFLIGHTS_FILE
from silo_agent.errors import LocalStoreError, TransportError
from silo_agent.identity.identity import Identity
from silo_agent.policy.passed_time import PASSED_FILE

__all__ = [
    "PRIVATE",
    "PROOFS",
    "Link",
    "Wiped",
    "daemon_runs",
    "require_silo",
    "tell",
    "wait_for_daemon",
    "wipe",
]

PRIVATE: Final = (
    "identity",
    "identity.previous",
    "identity.partial",
    "spool",
    "results",
    "adapters",
    "evolve",
    "diagnosis",
    "experts.sqlite",
    "experts.sqlite-journal",
    "experts.sqlite-wal",
    "experts.sqlite-shm",
    "runs",
    "rounds.jsonl",
    "evaluation.jsonl",
    "choice.jsonl",
    "guard.jsonl",
    FACTS_FILE,
    "probes.address",
)
"""Keys, uploads, results, adapters, memories, reports and the operator's words for facts."""
PROOFS: Final = (
    LEDGER_FILE,
    "state.json",
    "approvals.jsonl",
    "approvals.lock",
    PREFLIGHTS_FILE,
    PASSED_FILE,
    AUDIT_FILE,
    HEAD_FILE,
)
"""What was spent, followed, decided and logged."""
_OF_A_SILO: Final = ("identity", "identity.previous", "silo.toml", MARK)
_OF_A_COORDINATOR: Final = "coordinator.toml"
_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A link that was removed; what it leads to was not."""

    name: str
    """In the data directory."""
    target: str
    """Where it led to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiped:
    """What a deletion came to."""

    deleted: tuple[str, ...]
    """Names in the data directory."""
    links: tuple[Link, ...]
    """Whose targets are still there."""


def tell(identity: Identity, *, revoke: bool) -> None:
    """Tell the coordinator that this silo leaves, and whether its certificate ends now.

    Raises:
        TransportError: The coordinator was not reached, or refused.
    """
    credentials = identity.channel_credentials()
    with grpc.secure_channel(identity.coordinator_address, credentials) as channel:
        try:
            membership_pb2_grpc.MembershipServiceStub(channel).Leave(
                membership_pb2.LeaveRequest(revoke=revoke),
                timeout=_TIMEOUT_S,
                metadata=this_version().words,
            )
        except grpc.RpcError as error:
            trailers: Any = error.trailing_metadata()
            said = {str(key): str(value) for key, value in trailers or ()}
            text = said.get("chorale-hint") or str(error.details() or "no detail")
            raise TransportError(
                f"{error.code().name}: {text[:200]}", reason=said.get("chorale-reason", "")[:200]
            ) from error


def daemon_runs(data_dir: Path) -> bool:
    """Whether a process holds this silo's ledger: its daemon, or a command that stands in for it.

    Raises:
        LocalStoreError: The ledger is there and cannot be opened.
    """
    path = data_dir / LEDGER_FILE
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LocalStoreError(f"cannot open {path}: {error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def wait_for_daemon(data_dir: Path, *, timeout_s: float) -> bool:
    """Wait until no daemon holds the directory; whether that came in time."""
    give_up_at = time.monotonic() + timeout_s
    while daemon_runs(data_dir):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.2)
    return True


def require_silo(data_dir: Path) -> None:
    """Go on only in a silo's data directory; a coordinator's has entries of the same names.

    Raises:
        LocalStoreError: It is not one.
    """
    if (data_dir / _OF_A_COORDINATOR).exists():
        raise LocalStoreError(f"{data_dir} is a coordinator's: nothing in it was deleted")
    if not any((data_dir / name).exists() for name in _OF_A_SILO):
        raise LocalStoreError(
            f"{data_dir} is not a silo's data directory: nothing in it was deleted; it has none of "
            f"{', '.join(_OF_A_SILO)}"
        )


def wipe(data_dir: Path, *, proofs: bool) -> Wiped:
    """Delete what a silo whose daemon does not run holds; says what was there.

    ``proofs`` are the ledger, the adopted heads, the approvals and the audit log; they go too if it
    is set. Configuration and policy stay: they are the site's own text. An interrupted call is
    finished by the next one.

    Raises:
        LocalStoreError: It is not a silo's, a daemon runs, or something could not be deleted.
    """
    require_silo(data_dir)
    if daemon_runs(data_dir):
        raise LocalStoreError(f"a daemon uses {data_dir}: stop it before anything is deleted")
    deleted: list[str] = []
    links: list[Link] = []
    try:
        for name in (*PRIVATE, *(PROOFS if proofs else ())):
            path = data_dir / name
            links += _links(path, data_dir)
            if path.is_symlink():
                path.unlink()
                continue
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
            else:
                continue
            deleted.append(name)
        sync_directory(data_dir)
    except OSError as error:
        kept = "".join(f"; nor was {link.target}, where {link.name} led to" for link in links)
        raise LocalStoreError(
            f"not everything was deleted: {error}{kept}; call it again"
        ) from error
    return Wiped(deleted=tuple(deleted), links=tuple(links))


def _links(path: Path, data_dir: Path) -> list[Link]:
    """The links at and below a path."""
    found = [path] if path.is_symlink() else []
    if not found and path.is_dir():
        for place, directories, files in os.walk(path):
            entries = (Path(place, name) for name in (*directories, *files))
            found += [entry for entry in entries if entry.is_symlink()]
    return [
        Link(name=str(link.relative_to(data_dir)), target=os.path.realpath(link)) for link in found
    ]
