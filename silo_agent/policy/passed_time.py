"""That local work took longer than a plan gave it: ``passed_time.json``, durable.

In the record-level modes a silo answers when the plan says, so that nobody sees how long its work
took. What takes longer all the same is dropped, as if the silo had crashed, and noted here: for the
next such round the silence would tell as much again. From then on this silo refuses those modes
(rule ``time_passed``) until the operator's own floor, ``min_ready_after_s`` or
``min_step_answer_after_s`` in ``[limits]`` of the policy, is above the time that was passed. A plan
alone lifts nothing: a coordinator that tried one second more each time would measure the work.

Invariants:

1. The file holds the longest time of each kind that was passed, and it only grows.
2. A file that cannot be read is an error, not a silo that never was late.

Covered: two threads and commands beside them. Not covered: who may write the file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from ops.files import replace_file
from silo_agent.errors import LocalStoreError

__all__ = ["NEVER_LATE", "PASSED_FILE", "Passed", "PassedTime"]

PASSED_FILE: Final = "passed_time.json"
_MAX_FILE_BYTES: Final = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """The longest times of plans that work here took longer than; -1 where it never did."""

    ready_after_s: int = -1
    """From a task to the ready report."""
    step_answer_after_s: int = -1
    """From a step's descriptor to its upload."""

    def told(self, key: str) -> str:
        """What happened and what to do, for the operator; the key is one of a plan's."""
        return (
            f"local work took longer than a plan's {key} = {getattr(self, key)}, so this silo "
            f"takes part in no record mode: set limits.min_{key} of the policy above "
            f"{getattr(self, key)} and restart (`chorale-silo doctor --dry-round --plan PLAN` "
            "proposes how much)"
        )


NEVER_LATE: Final = Passed()
"""Of a silo whose work always ended in time."""


class PassedTime:
    """The file; each call reads it anew, so that one thread hears what another noted."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / PASSED_FILE

    def read(self) -> Passed:
        """What was passed so far.

        Raises:
            LocalStoreError: The file cannot be read, or is damaged.
        """
        try:
            with self._path.open("rb") as file:
                said = json.loads(file.read(_MAX_FILE_BYTES))
            if (
                not isinstance(said, dict)
                or set(said) != {field.name for field in fields(Passed)}
                or not all(type(value) is int and value >= -1 for value in said.values())
            ):
                raise ValueError("not the times of plans")  # noqa: TRY301  # one way to be damaged
            return Passed(**said)
        except FileNotFoundError:
            return NEVER_LATE
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise LocalStoreError(
                f"{self._path} cannot be read: put back a copy, or remove it once the policy's "
                "min_ready_after_s and min_step_answer_after_s are what a dry round proposes"
            ) from error

    def note(self, passed: Passed) -> None:
        """Note that work took longer, durably; called by the one thread that works.

        Raises:
            LocalStoreError: The disk refused, or the file is damaged.
        """
        known = self.read()
        longest = Passed(
            ready_after_s=max(known.ready_after_s, passed.ready_after_s),
            step_answer_after_s=max(known.step_answer_after_s, passed.step_answer_after_s),
        )
        try:
            replace_file(self._path, (json.dumps(asdict(longest)).encode() + b"\n",))
        except OSError as error:
            raise LocalStoreError(f"cannot write {self._path}: {error}") from error
