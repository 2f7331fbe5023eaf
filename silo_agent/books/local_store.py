"""What a silo remembers across restarts, and what it reports to its own people.

Files under the data directory::

    state.json            newest roster epoch and digest; the adopted head of each run's chain, the
                          one that moved last at the end; the highest head of the privacy ledger;
                          the highest ledger head that each peer has signed
    rounds.jsonl          one line per round of local work: losses, counts, timings
    evaluation.jsonl      one line per judged label and temperature, of the global adapter or, with
                          ``personal``, of what is this silo's own; with ``chosen``, of what it
                          chose from these
    choice.jsonl          one line per choice: counts of tasks by which candidates were told apart
    guard.jsonl           one line per verdict of the site's guard, and per panel of a base
    adapters/<sha256>     the adopted adapters at the heads of the newest chains, by the SHA-256
                          of their published bytes

Invariants:

1. ``state.json`` is replaced durably and at once. A damaged one stops the daemon: guessing an epoch
   or a head would reopen what they close.
2. The newest roster epoch never goes down, nor does the head of this silo's ledger. Heads of peers
   are kept for members of the newest roster only, so their number is bounded.
3. An adapter is stored only under the digest of its own bytes, and checked again when it is read.
   It is streamed in and read through a memory map, never held as a whole. One that is no head is
   deleted when a head moves, and of the heads the ``MAX_KEPT`` newest files stay: what a
   coordinator publishes cannot fill the disk. A head whose file is gone is fetched again.
4. The reports stay on this machine; nothing in this project sends them anywhere. A line that a
   crash cut short is dropped, never the lines before it. A report that passes ``MAX_REPORT_BYTES``
   goes on with the newer half of its lines.
5. At most ``MAX_HEADS`` runs are remembered, and the ``_NEWEST_HEADS`` that moved last are always
   among them. Of the others those in which this silo took no part are forgotten first, the oldest
   first: runs that a coordinator invents displace one another, and no head of a real run. A run
   that is forgotten is followed from its first record again; its ledger entries stay, so no attempt
   of it is joined twice.

Covered: crashes, damage. Not covered: two daemons on one directory (the ledger's lock stops the
second); a fork of a run that was forgotten.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.files import append_line, replace_file
from silo_agent.books.peer_heads import PeerHead
from silo_agent.errors import LocalStoreError
from silo_agent.line.incoming import PARTIAL, Incoming, mapped

__all__ = ["ChainHead", "LocalStore"]

DIGEST_BYTES = 32
FORMAT = 2
MAX_KEPT = 8
"""Adapters kept at most, each the head of a run."""
MAX_HEADS = 1024
"""Runs remembered at most."""
MAX_REPORT_BYTES = 16 << 20
"""Of each report."""
_NEWEST_HEADS = 64
"""Heads that moved last, and are not forgotten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHead:
    """The last record of a run that this silo adopted."""

    round: int
    """Its round; 0 is the initial adapter."""
    step: int
    """Its step of the round, from 0."""
    position: int
    """Its index in the chain."""
    adapter_sha256: bytes
    """Of the published bytes."""
    record_sha256: bytes
    """Of the signed record."""
    restored_round: int | None = None
    """Of a rollback: the round whose adapter it is."""


class LocalStore:
    """The silo's own state and reports; safe to call from several threads."""

    def __init__(self, data_dir: Path) -> None:
        """Open the store.

        Raises:
            LocalStoreError: The state file is damaged or the directory cannot be used.
        """
        self._directory = data_dir
        self._adapters = data_dir / "adapters"
        self._state_file = data_dir / "state.json"
        self._lock = threading.Lock()
        self._roster_epoch = 0
        self._roster_sha256: bytes | None = None
        self._heads: dict[str, ChainHead] = {}
        self._ledger_head: tuple[int, bytes] | None = None
        self._peers: dict[str, PeerHead] = {}
        try:
            self._load(json.loads(self._state_file.read_bytes()))
        except FileNotFoundError:
            # A silo that has never taken part in anything.
            return
        except (
            OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
        ) as error:  # fmt: skip
            raise LocalStoreError(
                f"{self._state_file} is damaged: restore it from a backup; without it this silo "
                "could be shown an old roster or another chain"
            ) from error

    # Roster ---------------------------------------------------------------------------------------

    def newest_roster_epoch(self) -> int:
        """The newest roster epoch accepted; 0 before the first."""
        return self._roster_epoch

    def newest_roster_sha256(self) -> bytes | None:
        """Digest of the roster accepted at that epoch, where it was stored with it."""
        return self._roster_sha256

    def set_newest_roster_epoch(self, epoch: int, sha256: bytes | None = None) -> None:
        """Remember an accepted roster durably.

        Raises:
            LocalStoreError: The epoch is older than one that was accepted.
        """
        with self._lock:
            if epoch < self._roster_epoch:
                raise LocalStoreError(
                    f"roster epoch {epoch} is older than {self._roster_epoch}, accepted before"
                )
            if (epoch, sha256) == (self._roster_epoch, self._roster_sha256):
                return
            before = self._roster_epoch, self._roster_sha256
            self._roster_epoch, self._roster_sha256 = epoch, sha256
            try:
                self._save()
            except LocalStoreError:
                # Memory must not run ahead of the disk, or the next call would not write either.
                self._roster_epoch, self._roster_sha256 = before
                raise

    # Chain ----------------------------------------------------------------------------------------

    def chain_head(self, run_id: str) -> ChainHead | None:
        """The adopted head of a run; None for a run this silo never followed."""
        return self._heads.get(run_id)

    def chain_heads(self) -> dict[str, ChainHead]:
        """The adopted head of every run."""
        with self._lock:
            return dict(self._heads)

    def set_chain_head(self, run_id: str, head: ChainHead) -> None:
        """Move the head of a run, durably, and delete the adapters that are of no use any more.

        Raises:
            LocalStoreError: The disk refused; if only a deletion failed, the head has moved.
        """
        with self._lock:
            before = dict(self._heads)
            self._heads.pop(run_id, None)
            self._heads[run_id] = head
            try:
                self._save()
            except LocalStoreError:
                self._heads = before
                raise
            self._delete_adapters(keep_first=head.adapter_sha256.hex())

    def limit_heads(self, took_part: Callable[[str], bool]) -> None:
        """Forget the heads of runs past the bound, durably.

        ``took_part`` says whether this silo was charged for an upload in a run.

        Raises:
            LocalStoreError: The disk refused; nothing is forgotten.
        """
        with self._lock:
            excess = len(self._heads) - MAX_HEADS
            if excess <= 0:
                return
            before = self._heads
            # Sorting is stable: of equals the one that moved longest ago comes first.
            old = sorted(list(before)[:-_NEWEST_HEADS], key=took_part)
            forgotten = set(old[:excess])
            self._heads = {run: head for run, head in before.items() if run not in forgotten}
            try:
                self._save()
            except LocalStoreError:
                self._heads = before
                raise

    # Ledger ---------------------------------------------------------------------------------------

    def ledger_head(self) -> tuple[int, bytes] | None:
        """The highest ledger head this silo has seen; None before the first charge."""
        return self._ledger_head

    def set_ledger_head(self, seq: int, sha256: bytes) -> None:
        """Remember a ledger head, so that a ledger restored from an old copy is noticed.

        Two threads report heads, so one that is lower than the highest comes too late.
        """
        with self._lock:
            before = self._ledger_head
            if before is not None and (seq < before[0] or before == (seq, sha256)):
                return
            self._ledger_head = (seq, sha256)
            try:
                self._save()
            except LocalStoreError:
                self._ledger_head = before
                raise

    def peer_heads(self) -> dict[str, PeerHead]:
        """The highest ledger head seen of each peer, by silo id."""
        with self._lock:
            return dict(self._peers)

    def set_peer_heads(self, heads: Mapping[str, PeerHead]) -> None:
        """Replace what is remembered of the peers, durably.

        Raises:
            LocalStoreError: The disk refused; what was remembered before stays.
        """
        with self._lock:
            before = self._peers
            if before == heads:
                return
            self._peers = dict(heads)
            try:
                self._save()
            except LocalStoreError:
                self._peers = before
                raise

    # Adapters -------------------------------------------------------------------------------------

    def discard_incoming(self) -> None:
        """Delete what a crash left half-fetched; for the daemon, before it fetches anything."""
        for left_over in self._adapters.glob(f".*{PARTIAL}"):
            left_over.unlink(missing_ok=True)

    @contextmanager
    def incoming(self) -> Iterator[Incoming]:
        """A file for published bytes on their way in; deleted at the end unless it was kept.

        Raises:
            LocalStoreError: The file cannot be made.
        """
        try:
            self._adapters.mkdir(mode=0o700, exist_ok=True)
            file = Incoming(self._adapters)
        except OSError as error:
            raise LocalStoreError(f"cannot write in {self._adapters}: {error}") from error
        try:
            yield file
        finally:
            file.close()

    def adapter(self, sha256: bytes) -> memoryview | None:
        """A kept adapter as a memory map, or None; a damaged one counts as not kept."""
        try:
            with (self._adapters / sha256.hex()).open("rb") as file:
                content = mapped(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LocalStoreError(f"cannot read adapter {sha256.hex()[:12]}: {error}") from error
        return content if hashlib.sha256(content).digest() == sha256 else None

    def _delete_adapters(self, *, keep_first: str) -> None:
        """Delete what is no head, and the oldest of the heads past the most that are kept."""
        heads = {head.adapter_sha256.hex() for head in self._heads.values()}
        try:
            if not self._adapters.exists():
                return
            files = [path for path in self._adapters.iterdir() if not path.name.startswith(".")]
            kept = sorted(
                (path for path in files if path.name in heads),
                key=lambda path: (path.name == keep_first, path.stat().st_mtime_ns),
            )[-MAX_KEPT:]
            for path in set(files).difference(kept):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise LocalStoreError(f"cannot tidy up {self._adapters}: {error}") from error

    # Reports --------------------------------------------------------------------------------------

    def append_round(self, entry: Mapping[str, Any]) -> None:
        """Report one round of local work."""
        self._append("rounds.jsonl", entry)

    def append_evaluation(
        self,
        *,
        run_id: str,
        round_number: int,
        adapter_sha256: str,
        rows: Sequence[Mapping[str, Any]],
        personal: bool = False,
        chosen: bool = False,
    ) -> None:
        """Report how one adapter did: a line for each row, all with the run and the round.

        A row is one environment, label and temperature. Round and digest are the global adapter's,
        also where the silo's own ``personal`` one was judged, or one ``chosen`` from both, which
        is personal too.

        Raises:
            LocalStoreError: The disk refused.
        """
        of_all = {
            "run": run_id,
            "round": round_number,
            "adapter_sha256": adapter_sha256,
            "personal": personal,
            **({"chosen": True} if chosen else {}),
        }
        for row in rows:
            self._append("evaluation.jsonl", {**of_all, **row})

    def rounds(self) -> list[dict[str, Any]]:
        """Every reported round, oldest first."""
        return list(self._lines("rounds.jsonl"))

    def evaluations(self) -> list[dict[str, Any]]:
        """Every reported evaluation row, oldest first; one that does not say is a global one's."""
        return [{"personal": False, **row} for row in self._lines("evaluation.jsonl")]

    def append_choice(self, entry: Mapping[str, Any]) -> None:
        """Report how the adapters that this silo may use were told apart.

        Raises:
            LocalStoreError: The disk refused.
        """
        self._append("choice.jsonl", entry)

    def choices(self) -> list[dict[str, Any]]:
        """Every reported choice, oldest first."""
        return list(self._lines("choice.jsonl"))

    def append_guard(self, entry: Mapping[str, Any]) -> None:
        """Report what the site's guard found; ``evolution/guard/verdict.py`` has the rows.

        Raises:
            LocalStoreError: The disk refused.
        """
        self._append("guard.jsonl", entry)

    def guard_rows(self) -> list[dict[str, Any]]:
        """Everything that the guard reported, oldest first."""
        return list(self._lines("guard.jsonl"))

    def _append(self, name: str, entry: Mapping[str, Any]) -> None:
        path = self._directory / name
        line = json.dumps(_finite(entry), allow_nan=False, separators=(",", ":")).encode()
        try:
            with self._lock:
                append_line(path, line)
                if path.stat().st_size > MAX_REPORT_BYTES:
                    content = path.read_bytes()
                    replace_file(path, (content[content.index(b"\n", len(content) // 2) + 1 :],))
        except OSError as error:
            raise LocalStoreError(f"cannot append to {path}: {error}") from error

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self._directory / name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        # What follows the last line feed is a write that never returned.
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise LocalStoreError(f"{path} is damaged at line {number}") from error
            if not isinstance(entry, dict):
                raise LocalStoreError(f"{path} is damaged at line {number}")
            yield entry

    def _load(self, state: dict[str, Any]) -> None:
        if state["format"] != FORMAT:
            raise LocalStoreError(f"{self._state_file} was written by another version")
        roster = state["roster"]
        self._roster_epoch = int(roster["epoch"])
        self._roster_sha256 = None if roster["sha256"] is None else _digest(roster["sha256"])
        self._heads = {
            run_id: ChainHead(
                round=int(head["round"]),
                step=int(head["step"]),
                position=int(head["position"]),
                adapter_sha256=_digest(head["adapter_sha256"]),
                record_sha256=_digest(head["record_sha256"]),
                restored_round=_round(head.get("restored_round")),
            )
            for run_id, head in state["heads"].items()
        }
        ledger = state["ledger"]
        if ledger is not None:
            self._ledger_head = (int(ledger["seq"]), _digest(ledger["sha256"]))
        self._peers = {
            silo_id: PeerHead.from_state(peer) for silo_id, peer in state["peers"].items()
        }

    def _save(self) -> None:
        sha256 = self._roster_sha256
        ledger = self._ledger_head
        state = {
            "format": FORMAT,
            "ledger": None if ledger is None else {"seq": ledger[0], "sha256": ledger[1].hex()},
            "peers": {silo_id: peer.to_state() for silo_id, peer in sorted(self._peers.items())},
            "roster": {
                "epoch": self._roster_epoch,
                "sha256": None if sha256 is None else sha256.hex(),
            },
            "heads": {
                run_id: {
                    "round": head.round,
                    "step": head.step,
                    "position": head.position,
                    "adapter_sha256": head.adapter_sha256.hex(),
                    "record_sha256": head.record_sha256.hex(),
                    "restored_round": head.restored_round,
                }
                for run_id, head in self._heads.items()
            },
        }
        try:
            replace_file(self._state_file, (json.dumps(state, indent=2).encode() + b"\n",))
        except OSError as error:
            raise LocalStoreError(f"cannot write {self._state_file}: {error}") from error


def _digest(value: str) -> bytes:
    digest = bytes.fromhex(value)
    if len(digest) != DIGEST_BYTES:
        raise ValueError("not 32 bytes")
    return digest


def _round(value: Any) -> int | None:
    return None if value is None else int(value)


def _finite(value: Any) -> Any:
    """Numbers that JSON does not have become their names, so that a bad round can be reported."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
