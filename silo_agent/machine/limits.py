"""What the limits of the policy mean while work runs: GPUs and disk.

Invariants:

1. A GPU that the policy does not name is not visible to this process, nor to any it starts.
2. Local work does not begin while the data directory holds more than ``max_disk_bytes``. It is then
   work that failed, and the silo uploads zeros with full noise, as ADR 5 has it.
3. What is counted has sizes that follow from plans, messages and time. Not counted is what has a
   size that follows from data: the stores of the methods, with the tries, the demonstrations
   and the silo's own reports. Of a silo close to its limit one success more could end the work, and
   a silo that is silent, or whose zeros are seen, would tell it.

Covered: the above. Not covered: time (``evolution/local_time.py``); what work that has begun adds
to the disk; a disk that is full, which fails work whatever filled it; how much the stores hold,
which is bounded elsewhere: each by its capacity (``evolution/memory/memory.py``), their number by
``max_kept_runs`` (``silo_agent/books/kept_runs.py``).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from silo_agent.errors import ConfigError, DiskLimitError
from silo_agent.policy.document import LimitsSection

__all__ = ["METHOD_STORES", "counted_bytes", "require_disk", "restrict_gpus"]

METHOD_STORES: Final = "evolve"
"""In the data directory: what methods keep, a directory for each run."""
_SIZED_BY_DATA: Final = (
    METHOD_STORES,
    "experts.sqlite",
    "experts.sqlite-journal",
    "experts.sqlite-shm",
    "experts.sqlite-wal",
    "rounds.jsonl",
    "evaluation.jsonl",
    "choice.jsonl",
)
"""In the data directory; not counted."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"


def require_disk(data_dir: Path, limits: LimitsSection) -> None:
    """Called before local work.

    Raises:
        DiskLimitError: There is more on disk than the site allows.
    """
    most = limits.max_disk_bytes
    if most is not None and counted_bytes(data_dir) > most:
        raise DiskLimitError(
            f"{data_dir} holds more than limits.max_disk_bytes {most}, without {METHOD_STORES}, "
            "demonstrations and reports: move what is not the silo's elsewhere, or raise the limit"
        )


def counted_bytes(data_dir: Path) -> int:
    """Bytes of the files of a data directory that count; links are not followed."""
    total = 0
    for directory, below, names in os.walk(data_dir):
        if Path(directory) == data_dir:
            below[:] = [name for name in below if name not in _SIZED_BY_DATA]
            names = [name for name in names if name not in _SIZED_BY_DATA]  # noqa: PLW2901
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 - a hot loop
            except FileNotFoundError:
                # Files come and go while a daemon works.
                continue
    return total


def restrict_gpus(
    limits: LimitsSection, environment: MutableMapping[str, str] | None = None
) -> None:
    """Hide every GPU that may not be used; before anything that knows of GPUs is loaded.

    An index counts among those that the environment shows already, which without any restriction
    is the order of the machine's own list.

    The environment is this process's own unless one is given.

    Raises:
        ConfigError: The policy names a GPU that the environment hides.
    """
    if limits.gpus is None:
        return
    variables = os.environ if environment is None else environment
    shown = variables.get(VISIBLE)
    names = [name.strip() for name in shown.split(",") if name.strip()] if shown else []
    if shown is not None and limits.gpus and max(limits.gpus) >= len(names):
        raise ConfigError(
            f"limits.gpus names GPU {max(limits.gpus)}, but {VISIBLE}={shown!r} shows {len(names)}"
        )
    variables.setdefault(ORDER, "PCI_BUS_ID")
    variables[VISIBLE] = ",".join(names[index] if names else str(index) for index in limits.gpus)
