"""The runs this silo has heard of: what each asks for, what was decided, what it came to.

::

    runs/<digest of the run id>/run.json         the figures below
    runs/<digest of the run id>/plan.toml        the plan, byte for byte
    runs/<digest of the run id>/descriptor.pb    the newest descriptor that this silo accepted

Invariants:

1. Only a task that the coordinator signed makes an entry, and its plan has the signed digest; both
   are checked again when they are read.
2. Every file is replaced at once, so that the commands read beside a daemon that writes.
3. At most ``MAX_RUNS`` are kept. Room is made by dropping the one heard of first among those that
   this silo never took part in; a coordinator that invents runs displaces none that it did.
4. These notes decide nothing. What is allowed is decided by the policy, the approvals and the
   ledger.

Covered: the daemon's two threads, commands beside it, damage of one entry, which is shown as such.
Not covered: two daemons on one directory (the ledger's lock stops the second).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2
from federation.chain.task import RoundTask
from federation.errors import PlanError
from federation.plan.plan import Plan, plan_sha256
from federation.plan.read import read_plan
from ops.files import replace_file
from secagg import hybrid, suite
from secagg.bounds import require_name
from secagg.descriptor import AggregationId, SignedDescriptor
from secagg.errors import MalformedMessageError
from silo_agent.errors import LocalStoreError

__all__ = ["MAX_RUNS", "NOT_INVITED", "HeardRun", "HeardRuns"]

MAX_RUNS: Final = 256
NOT_INVITED: Final = "not_invited"
"""Noted where a verdict stands, of a task that invites others."""
_FORMAT: Final = 1
_MAX_FILE_BYTES: Final = 1 << 20
_DIGEST_CHARACTERS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class HeardRun:
    """One run."""

    run_id: str
    """As the coordinator calls it."""
    plan_sha256: str
    """Of the plan that it asked for last."""
    heard_unix_s: int
    """When this silo first heard of it."""
    round: int
    """Of the newest task."""
    step: int
    """Of the newest task."""
    rule: str = ""
    """The guardian's newest verdict: ``accepted``, or the rule that refused; empty before one;
    ``not_invited`` where the newest task is for others."""
    rounds_taken_part: int = 0
    """Rounds in which this silo's upload was followed by its shares."""
    last_round_taken_part: int = 0
    """The newest of them; 0 before the first."""
    hardware: tuple[str, ...] = ()
    """What was chosen for this machine, in words."""
    suite: int = suite.SUITE
    """Of the newest task's masks."""
    over: bool = False
    """Whether the coordinator has said since the newest task that the run is over."""


class HeardRuns:
    """The directory; safe to call from several threads."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / "runs"
        self._lock = threading.Lock()

    # Reading --------------------------------------------------------------------------------------

    def all(self) -> tuple[HeardRun, ...]:
        """Every run, in the order in which this silo heard of them; unreadable ones are left out.

        Raises:
            LocalStoreError: The directory cannot be read.
        """
        found = [self._read(path) for path in self._entries()]
        return tuple(
            sorted(
                (run for run in found if run is not None),
                key=lambda run: (run.heard_unix_s, run.run_id),
            )
        )

    def get(self, run_id: str) -> HeardRun | None:
        """One run; None if this silo has not heard of it."""
        found = self._read(self._place(run_id))
        return found if found is not None and found.run_id == run_id else None

    def plan(self, run: HeardRun) -> Plan:
        """The plan that the run asked for last.

        Raises:
            LocalStoreError: It is not there, or not the one with that digest.
        """
        path = self._place(run.run_id) / "plan.toml"
        try:
            toml = path.read_bytes()
            if plan_sha256(toml).hex() == run.plan_sha256:
                return read_plan(toml)
        except (OSError, PlanError) as error:
            raise LocalStoreError(f"the plan {path} cannot be read: {error}") from error
        raise LocalStoreError(f"{path} is not the plan that run {run.run_id} asked for")

    def descriptor(self, run: HeardRun) -> SignedDescriptor | None:
        """The newest descriptor that was accepted under the run's plan; None before the first.

        Raises:
            LocalStoreError: It cannot be read.
        """
        path = self._place(run.run_id) / "descriptor.pb"
        try:
            content = path.read_bytes()
            if len(content) > _MAX_FILE_BYTES:
                raise LocalStoreError(f"{path} has more than {_MAX_FILE_BYTES} bytes")
            signed = secagg_wire.descriptor_from_proto(secagg_pb2.Descriptor.FromString(content))
        except FileNotFoundError:
            return None
        except (OSError, DecodeError, MalformedMessageError) as error:
            raise LocalStoreError(f"the descriptor {path} cannot be read: {error}") from error
        mine = signed.descriptor.identity.run_id == run.run_id
        return signed if mine and signed.descriptor.plan_sha256.hex() == run.plan_sha256 else None

    # Writing: the daemon --------------------------------------------------------------------------

    def hear(self, task: RoundTask, plan_toml: Callable[[], bytes]) -> None:
        """Remember a task, verified, and the plan it names.

        ``plan_toml`` fetches the plan's bytes; it is called where they are not here yet.

        Raises:
            LocalStoreError: The disk refused.
        """
        with self._lock:
            known = self.get(task.run_id)
            asked = task.plan_sha256.hex()
            if known is None:
                self._make_room()
                known = HeardRun(
                    run_id=task.run_id,
                    plan_sha256="",
                    heard_unix_s=int(time.time()),
                    round=task.round,
                    step=task.step,
                )
            if known.plan_sha256 != asked:
                self._write(task.run_id, "plan.toml", plan_toml())
            self._save(
                replace(
                    known,
                    plan_sha256=asked,
                    round=task.round,
                    step=task.step,
                    suite=hybrid.SUITE if task.invited else suite.SUITE,
                    over=False,
                )
            )

    def judged(self, run_id: str, rule: str, *, hardware: tuple[str, ...] | None = None) -> None:
        """Note a verdict of the guardian; nothing for a run that is not known.

        ``rule`` is ``accepted`` or the rule that refused. ``hardware`` is what was chosen for this
        machine; None leaves it as it is.

        Raises:
            LocalStoreError: The disk refused.
        """
        with self._lock:
            known = self.get(run_id)
            if known is not None:
                chosen = known.hardware if hardware is None else hardware
                self._save(replace(known, rule=rule, hardware=chosen))

    def describe(self, signed: SignedDescriptor) -> None:
        """Keep a descriptor that was accepted, for the preview.

        Raises:
            LocalStoreError: The disk refused.
        """
        run_id = signed.descriptor.identity.run_id
        with self._lock:
            if self.get(run_id) is not None:
                content = secagg_wire.descriptor_to_proto(signed).SerializeToString()
                self._write(run_id, "descriptor.pb", content)

    def took_part(self, identity: AggregationId) -> None:
        """Count a round that this silo's shares were part of; its steps count once.

        Raises:
            LocalStoreError: The disk refused.
        """
        with self._lock:
            known = self.get(identity.run_id)
            if known is not None and identity.round > known.last_round_taken_part:
                self._save(
                    replace(
                        known,
                        rounds_taken_part=known.rounds_taken_part + 1,
                        last_round_taken_part=identity.round,
                    )
                )

    def ended(self, run_ids: Iterable[str]) -> None:
        """Note runs that the coordinator says are over; nothing for those that are not known.

        Raises:
            LocalStoreError: The disk refused.
        """
        with self._lock:
            for run_id in run_ids:
                known = self.get(run_id)
                if known is not None:
                    self._save(replace(known, over=True))

    # On disk --------------------------------------------------------------------------------------

    def _place(self, run_id: str) -> Path:
        # The coordinator chose the run id; a digest is a name of our own making.
        return self._directory / hashlib.sha256(run_id.encode()).hexdigest()[:32]

    def _entries(self) -> list[Path]:
        try:
            return [path for path in self._directory.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LocalStoreError(f"cannot read {self._directory}: {error}") from error

    def _read(self, place: Path) -> HeardRun | None:
        try:
            content = (place / "run.json").read_bytes()
            return _run(json.loads(content)) if len(content) <= _MAX_FILE_BYTES else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError, MalformedMessageError):
            # It is the newest task's to write again; what was decided is not in it.
            return None

    def _save(self, run: HeardRun) -> None:
        if self.get(run.run_id) != run:
            text = json.dumps({"format": _FORMAT, **asdict(run)}, indent=2)
            self._write(run.run_id, "run.json", text.encode() + b"\n")

    def _write(self, run_id: str, name: str, content: bytes) -> None:
        place = self._place(run_id)
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(place / name, (content,))
        except OSError as error:
            raise LocalStoreError(f"cannot write {place / name}: {error}") from error

    def _make_room(self) -> None:
        entries = self._entries()
        if len(entries) < MAX_RUNS:
            return
        idle: list[tuple[int, Path]] = []
        for path in entries:
            run = self._read(path)
            if run is None or not run.rounds_taken_part:
                idle.append((0 if run is None else run.heard_unix_s, path))
        # Where it took part in all of them, the one heard of first goes.
        oldest = min(idle) if idle else (0, min(entries, key=lambda path: path.stat().st_mtime_ns))
        shutil.rmtree(oldest[1], ignore_errors=True)


def _run(said: Mapping[str, Any]) -> HeardRun:
    if said["format"] != _FORMAT:
        raise ValueError("written by another version")
    require_name(said["run_id"], "run id")
    if len(bytes.fromhex(said["plan_sha256"])) * 2 != _DIGEST_CHARACTERS:
        raise ValueError("not a digest")
    return HeardRun(
        run_id=str(said["run_id"]),
        plan_sha256=str(said["plan_sha256"]),
        heard_unix_s=int(said["heard_unix_s"]),
        round=int(said["round"]),
        step=int(said["step"]),
        rule=str(said["rule"]),
        rounds_taken_part=int(said["rounds_taken_part"]),
        last_round_taken_part=int(said["last_round_taken_part"]),
        hardware=tuple(str(line) for line in said["hardware"]),
        # An earlier release noted no suite, and knew one alone; nor did it note an end.
        suite=int(said.get("suite", suite.SUITE)),
        over=bool(said.get("over", False)),
    )
