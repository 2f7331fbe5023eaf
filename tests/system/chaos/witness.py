"""What a daemon let out of its hands, noted by the process itself for whoever judges the run.

CHORALE_TEST_WITNESS=<file>   one JSON object a line, synced before the thing happens

    uploaded   a silo begins to send a masked vector: its identity and digest
    revealed   a silo sends shares: of whom the self-mask seed's, of whom the mask key's
    opened     the coordinator took the masks off a sum: of whom, and which

Never a share, a key or a vector. Covered: both daemons, whatever kills them afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

LOCK = threading.Lock()


def note(file: Path, what: str, identity: Any, **details: Any) -> None:
    line = json.dumps({"what": what, "identity": list(identity.fields()), **details})
    with LOCK, file.open("a") as sink:
        sink.write(f"{line}\n")
        sink.flush()
        os.fsync(sink.fileno())


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def of_coordinator() -> None:
    from server.attempt.attempt import Attempt

    file, unmask = Path(os.environ["CHORALE_TEST_WITNESS"]), Attempt.unmask

    def opened(self: Any) -> Any:
        total = unmask(self)
        note(
            file,
            "opened",
            self.identity,
            survivors=list(self.survivors),
            sum_sha256=hashlib.sha256(total.data).hexdigest(),
        )
        return total

    Attempt.unmask = opened  # type: ignore[method-assign]


def of_silo() -> None:
    from silo_agent.line.transport import Coordinator

    file = Path(os.environ["CHORALE_TEST_WITNESS"])
    upload, unmask = Coordinator.upload, Coordinator.unmask

    def uploaded(self: Any, identity: Any, header: Any, spool: Any) -> None:
        note(file, "uploaded", identity, masked_sha256=header.masked_sha256.hex())
        upload(self, identity, header, spool)

    def revealed(self: Any, identity: Any, shares: Any) -> None:
        note(
            file,
            "revealed",
            identity,
            self_seed=[share.owner for share in shares.self_seed_shares],
            mask_key=[share.owner for share in shares.mask_key_shares],
        )
        unmask(self, identity, shares)

    Coordinator.upload = uploaded  # type: ignore[method-assign]
    Coordinator.unmask = revealed  # type: ignore[method-assign]
