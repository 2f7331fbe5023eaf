"""What the limits of the policy mean while work runs: GPUs and disk.

Invariants:

1. A GPU that the policy does not name is not visible to this process, nor to any it starts.
2. Local work does not begin while the data directory holds more than ``max_disk_bytes``. How much
   it holds depends on data, so this refuses no round: it is work that failed, and the silo uploads
   zeros with full noise, as ADR 5 has it.

Covered: the above. Not covered: time (``evolution/local_time.py``); what work that has begun adds
to the disk.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from silo_agent.errors import ConfigError, DiskLimitError
from silo_agent.policy.document import LimitsSection

__all__ = ["require_disk", "restrict_gpus", "used_bytes"]

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"


def require_disk(data_dir: Path, limits: LimitsSection) -> None:
    """Called before local work.

    Raises:
        DiskLimitError: There is more on disk than the site allows.
    """
    most = limits.max_disk_bytes
    if most is not None and used_bytes(data_dir) > most:
        raise DiskLimitError(
            f"{data_dir} holds more than limits.max_disk_bytes {most}: delete something, for "
            "example with `chorale-silo buffer delete`, or raise the limit"
        )


def used_bytes(data_dir: Path) -> int:
    """Bytes of the files below a directory; links are not followed."""
    total = 0
    for directory, _, names in os.walk(data_dir):
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
