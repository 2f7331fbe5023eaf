"""One sum applied and one link of the chain followed, with the memory each of them took.

Run as a program: ``python -m tests.lab.vectors_memory ROLE DIRECTORY COORDINATES`` prints the peak
resident memory of the step as a count of float32 vectors. ``make`` writes the files first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from federation.adapter.encoding import adapter_header
from federation.adapter.layout import Layout, TensorSpec
from federation.chain.record import AdapterRecord
from secagg.descriptor import AggregationId
from server.run.aggregation import aggregate
from server.run.descriptor import build_descriptor
from server.store.blobs.directory import BlobStore
from silo_agent.books.local_store import LocalStore
from silo_agent.follow.chain import ChainFollower
from tests.kit.federation.adapters import plan_of
from tests.kit.federation.records import one_sum
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, make_roster, signed_roster, silo_names

SILOS = silo_names(5)
TENSORS = 4
TILE = 1 << 18
PLAN = plan_of("fedavg")


def layout_of(coordinates):
    side = coordinates // TENSORS
    return Layout(tuple(TensorSpec(name=f"t{k}", shape=(side,)) for k in range(TENSORS)))


def make(directory, coordinates):
    """An initial adapter and a sum, written in tiles."""
    layout = layout_of(coordinates)
    draw = np.random.default_rng(1)
    with (directory / "initial").open("wb") as file:
        file.write(adapter_header(layout))
        for start in range(0, layout.dimension, TILE):
            size = min(TILE, layout.dimension - start)
            file.write(draw.standard_normal(size, dtype=np.float32).tobytes())
    with (directory / "sum").open("wb") as file:
        for start in range(0, layout.dimension, TILE):
            size = min(TILE, layout.dimension - start)
            file.write(draw.integers(-50, 51, size).astype("<i4").tobytes())


def parts(path):
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk


def coordinate(directory):
    """What the coordinator does with a sum."""
    blobs = BlobStore(directory / "blobs")
    initial = blobs.put(parts(directory / "initial"))
    before = peak_bytes()
    previous = blobs.get(initial)
    descriptor = build_descriptor(
        identity=AggregationId(run_id="run", round=1, step=0, part=0, attempt=1),
        plan=PLAN,
        plan_sha256=bytes(32),
        roster=signed_roster(make_roster(5)),
        ready=dict.fromkeys(SILOS, ()),
        adapter=previous,
        adapter_sha256=initial,
        now_unix_s=100,
    )
    total = np.memmap(directory / "sum", dtype="<u4", mode="r")
    result = aggregate(
        plan=PLAN,
        previous=previous,
        total=total,
        descriptor=descriptor,
        survivors=SILOS,
        optimiser=PLAN.optimiser(),
    )
    digests = {
        "initial": initial.hex(),
        "adapter": blobs.put(result.adapter).hex(),
        "sum": blobs.put(result.sum_bytes).hex(),
    }
    (directory / "digests.json").write_text(json.dumps(digests))
    return before


class Published:
    """The coordinator's files, as the transport hands them over."""

    def __init__(self, directory):
        self._blobs = BlobStore(directory / "blobs")
        found = json.loads((directory / "digests.json").read_text())
        digests = {name: bytes.fromhex(digest) for name, digest in found.items()}
        common = {
            "run_id": "run",
            "plan_sha256": bytes(32),
            "base_model_sha256": bytes(32),
        }
        first = AdapterRecord(
            round=0, kind="initial", adapter_sha256=digests["initial"], **common
        ).sign(COORDINATOR_KEY)
        second = AdapterRecord(
            round=1,
            kind="aggregated",
            adapter_sha256=digests["adapter"],
            parent_sha256=digests["initial"],
            record_parent_sha256=first.sha256,
            parts=one_sum(sum_sha256=digests["sum"], survivors=SILOS),
            **common,
        ).sign(COORDINATOR_KEY)
        self._records = (first, second)

    def records(self, _run_id, _from_round):
        return self._records

    def blob(self, sha256, sink, *, max_bytes):
        for chunk in self._blobs.chunks(sha256):
            sink.write(chunk)


def follow(directory):
    """What a silo does with what was published."""
    (directory / "silo").mkdir()
    before = peak_bytes()
    follower = ChainFollower(coordinator=Published(directory), store=LocalStore(directory / "silo"))
    head = follower.sync("run", lambda _sha256: PLAN, make_roster(5).coordinator_key)
    if head.record.round != 1:
        raise SystemExit("the head was not adopted")
    return before


def peak_bytes():
    # Of this program alone: ru_maxrss would begin with the peak of the process that started it.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main():
    role, directory, coordinates = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if role == "make":
        make(directory, coordinates)
        return
    before = {"coordinate": coordinate, "follow": follow}[role](directory)
    peak = peak_bytes()
    figures = {
        "peak_bytes": peak,
        "before_bytes": before,
        "vectors": (peak - before) / (4 * coordinates),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
