"""The silo follows the chain of published adapters, and stops at the first link that is wrong.

Ordered invariants, for every record after the last one this silo adopted:

1. The coordinator's signature and the links to the records before it.
2. The record this silo adopted earlier is still in the chain: a fork stops it.
3. The published bytes have the record's digest and parse as a bounded, finite adapter.
4. An aggregated record follows from its published integer sum by the plan's update rule.
5. Only then is the head moved, durably.

Adapters and sums are fetched into files and read through memory maps. A check works tile by tile,
so that a silo needs no copy of a vector beyond those maps, except for the gauge's.

What may be fetched is bounded before it is: an initial adapter by the site's limit on coordinates,
what follows by the adapter before it, whose layout it must have.

Covered: forks, substituted adapters, an update that does not follow from its sum. Not covered: a
coordinator that lies about the sum itself (forks of it are detected, the lie is not).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import structlog

from federation.adapter import MAX_HEADER_BYTES, decode_adapter
from federation.aggregate.rolora import RoLoRA
from federation.plan import Plan
from federation.record import AdapterRecord, verify_chain
from federation.verify import verify_update
from secagg.bounds import MAX_DIMENSION, MAX_METRICS
from silo_agent.errors import ChainMismatchError
from silo_agent.local_store import ChainHead, Incoming, LocalStore
from silo_agent.transport import Coordinator

__all__ = ["ChainFollower", "Head"]

log = structlog.get_logger(__name__)

MAX_ADAPTER_BYTES = 1 << 30
HEADER_BYTES = MAX_HEADER_BYTES + 8
"""The most that the same tensors may take more in another writer's file."""
COORDINATE_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The adopted global adapter."""

    record: AdapterRecord
    tensors: dict[str, np.ndarray]
    """Read-only views of the kept file."""


class ChainFollower:
    """Adopts what the coordinator publishes, after checking it."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        store: LocalStore,
        max_dimension: int = MAX_DIMENSION,
    ) -> None:
        """Delete what a crash left half-fetched.

        Args:
            coordinator: Publishes.
            store: Keeps.
            max_dimension: The longest vector that this site uploads.
        """
        self._max_dimension = max_dimension
        self._coordinator = coordinator
        self._store = store
        store.discard_incoming()

    def sync(self, run_id: str, plan_of: Callable[[bytes], Plan], coordinator_key: bytes) -> Head:
        """Follow the chain of a run to its end.

        Args:
            run_id: The run.
            plan_of: Finds the plan by the digest that the verified chain names.
            coordinator_key: From the trusted roster.

        Raises:
            ChainMismatchError: the published chain contradicts what this silo adopted before.
            FederationError: a signature, a link, an adapter or an update is wrong.
        """
        records = self._coordinator.records(run_id, 0)
        verify_chain(records, coordinator_key)
        if records[0].run_id != run_id:
            raise ChainMismatchError(f"run {run_id} is answered with the chain of another run")
        plan = plan_of(records[0].plan_sha256)
        known = self._store.chain_head(run_id)
        adopted = -1
        if known is not None:
            adopted = known.round
            if adopted >= len(records) or records[adopted].sha256 != known.record_sha256:
                raise ChainMismatchError(
                    f"the chain of run {run_id} no longer contains the record of round {adopted} "
                    "that this silo adopted: the coordinator shows a fork or lost records"
                )
        adapter = memoryview(b"") if adopted < 0 else self._adopted(records[adopted], plan)
        for record in records[adopted + 1 :]:
            adapter = self._adopt(run_id, record, plan, adapter)
        tensors = decode_adapter(adapter, max_bytes=MAX_ADAPTER_BYTES)
        return Head(record=records[-1], tensors=tensors)

    def _most_bytes(self, plan: Plan) -> int:
        """The longest adapter whose rounds this site would take part in."""
        # RoLoRA uploads one factor at a time, so the limit holds for each of the two.
        uploads = 2 if plan.aggregation.method == RoLoRA.name else 1
        return min(
            uploads * self._max_dimension * COORDINATE_BYTES + HEADER_BYTES, MAX_ADAPTER_BYTES
        )

    def _adopted(self, record: AdapterRecord, plan: Plan) -> memoryview:
        """The bytes of a record that was adopted before; fetched again if they were lost."""
        local = self._store.adapter(record.adapter_sha256)
        if local is not None:
            return local
        with self._fetched(record.adapter_sha256, self._most_bytes(plan)) as incoming:
            # The transport has checked the digest, and the record was verified when it was adopted.
            incoming.keep()
            return incoming.content()

    def _adopt(
        self, run_id: str, record: AdapterRecord, plan: Plan, previous: memoryview
    ) -> memoryview:
        """Check the bytes of one record, keep them, and only then move the head."""
        local = self._store.adapter(record.adapter_sha256)
        if local is not None:
            self._check(record, plan, previous, local)
            published = local
        else:
            most_bytes = len(previous) + HEADER_BYTES if previous else self._most_bytes(plan)
            with self._fetched(record.adapter_sha256, most_bytes) as incoming:
                published = incoming.content()
                self._check(record, plan, previous, published)
                incoming.keep()
        self._store.set_chain_head(
            run_id,
            ChainHead(
                round=record.round,
                adapter_sha256=record.adapter_sha256,
                record_sha256=record.sha256,
            ),
        )
        log.info(
            "adapter_adopted",
            run=run_id,
            round=record.round,
            kind=record.kind,
            adapter=record.adapter_sha256.hex()[:12],
        )
        return published

    def _check(
        self, record: AdapterRecord, plan: Plan, previous: memoryview, published: memoryview
    ) -> None:
        decode_adapter(published, max_bytes=MAX_ADAPTER_BYTES)
        if record.kind != "aggregated":
            return
        most_bytes = len(previous) + MAX_METRICS * COORDINATE_BYTES
        with self._fetched(record.sum_sha256, most_bytes) as incoming:
            content = incoming.content()
            if len(content) % 4:
                raise ChainMismatchError("the published sum is not a whole number of elements")
            # The scale follows from the plan, so a silo that missed the descriptor can verify too.
            verify_update(
                plan=plan,
                record=record,
                previous=previous,
                total=np.frombuffer(content, dtype="<i4"),
                published=published,
            )

    @contextmanager
    def _fetched(self, sha256: bytes, max_bytes: int) -> Iterator[Incoming]:
        with self._store.incoming() as incoming:
            self._coordinator.blob(sha256, incoming.file, max_bytes=max_bytes)
            yield incoming
