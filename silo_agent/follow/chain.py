"""The silo follows the chain of published adapters, and stops at the first link that is wrong.

Ordered invariants, for every record after the last one this silo adopted:

1. The coordinator's signature and the links to the records before it.
2. The record this silo adopted earlier is still in the chain: a fork stops it.
3. The published bytes have the record's digest and parse as a bounded, finite adapter.
4. An aggregated record follows from its published integer sum by the plan's update rule and the
   optimiser's state, which this silo keeps itself and rebuilds, after a restart, from the earlier
   sums: those of the round's steps, or of the run since its newest rollback where the state
   crosses rounds.
5. A rollback brings back the adapter of an earlier record of the same chain, which this silo finds
   by the links from its own head, and only if the site allows it: otherwise nothing of it is
   fetched, and the head stays before it.
6. Only then is the head moved, durably.

Only the adopted record and what follows it is fetched. A record names the digest of the one before
it, so the adopted one stands for the whole chain that led to it.

The chain comes in pages. Each is verified and adopted before the next is asked for, so what a silo
holds of a chain is one page, except while it rebuilds an optimiser's state or looks a rollback up,
and no chain is longer than its plan.

Adapters and sums are fetched into files and read through memory maps. A check works tile by tile,
so that a silo needs no copy of a vector beyond those maps, except for the gauge's.

What may be fetched is bounded before it is: an initial adapter by the site's limit on coordinates,
what follows by the adapter before it, whose layout it must have.

Covered: forks, substituted adapters, an update that does not follow from its sum. Not covered: a
coordinator that lies about the sum itself (forks of it are detected, the lie is not).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from federation.adapter.encoding import MAX_HEADER_BYTES, decode_adapter
from federation.adapter.layout import Layout
from federation.aggregate.fedavg import FedAvg
from federation.aggregate.optimiser import Optimiser
from federation.chain.record import AdapterRecord, position_of, require_link, verify_chain
from federation.chain.replay import replay, replay_start, since_rollback
from federation.chain.verify import verify_update
from federation.errors import ChainError
from federation.plan.plan import Plan
from federation.wire import RECORDS_PER_PAGE
from ops.logs.logger import get_logger
from secagg.bounds import MAX_DIMENSION, MAX_METRICS
from silo_agent.books.local_store import ChainHead, LocalStore
from silo_agent.errors import ChainMismatchError
from silo_agent.line.incoming import Incoming
from silo_agent.line.transport import Coordinator

__all__ = ["ChainFollower", "Head"]

log = get_logger(__name__)

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
        admit: Callable[[AdapterRecord], None] = lambda _record: None,
        adopting: Callable[[AdapterRecord], None] = lambda _record: None,
    ) -> None:
        """Delete what a crash left half-fetched.

        ``max_dimension`` is the longest vector that this site uploads. ``admit`` raises for a
        verified record that the site does not follow; ``adopting`` is told of each record before it
        becomes the head.
        """
        self._admit = admit
        self._adopting = adopting
        self._max_dimension = max_dimension
        self._coordinator = coordinator
        self._store = store
        self._optimiser: tuple[str, Optimiser] | None = None
        store.discard_incoming()

    def sync(self, run_id: str, plan_of: Callable[[bytes], Plan], coordinator_key: bytes) -> Head:
        """Follow the chain of a run to its end.

        ``plan_of`` finds the plan by the digest that the verified chain names; the key is from the
        trusted roster.

        Raises:
            ChainMismatchError: the published chain contradicts what this silo adopted before.
            FederationError: a signature, a link, an adapter or an update is wrong.
            PolicyRefusalError: the site does not follow a record; the head stays before it.
        """
        known = self._store.chain_head(run_id)
        position = 0 if known is None else known.position
        records = self._coordinator.records(run_id, position)
        if known is not None and (not records or records[0].sha256 != known.record_sha256):
            raise ChainMismatchError(
                f"the chain of run {run_id} no longer contains the record of round {known.round} "
                f"step {known.step} that this silo adopted: the coordinator shows a fork or lost "
                "records"
            )
        if not records:
            raise ChainError(f"the chain of run {run_id} has no record")
        first = records[0]
        if known is None:
            # An adopted one was verified then, and its digest is the same.
            first.verify(coordinator_key)
        if first.run_id != run_id:
            raise ChainMismatchError(f"run {run_id} is answered with the chain of another run")
        plan = plan_of(first.plan_sha256)
        head = None if known is None else first
        new = records if known is None else records[1:]
        adapter = memoryview(b"") if head is None else self._adopted(head, plan)
        while True:
            position += len(records)
            if position > plan.releases + 1:
                raise ChainError(
                    f"the chain of run {run_id} has more than the {plan.releases + 1} records that "
                    "its plan allows"
                )
            head = verify_chain(
                new,
                coordinator_key,
                after=(before := head),
                sums_per_round=plan.sums_per_round,
                earlier=self._earlier_than(before, plan),
            )
            adapter = self._adopt_all(new, before, plan, adapter)
            if len(records) < RECORDS_PER_PAGE:
                break
            new = records = self._coordinator.records(run_id, position)
        return Head(record=head, tensors=decode_adapter(adapter, max_bytes=MAX_ADAPTER_BYTES))

    def _adopt_all(
        self,
        new: tuple[AdapterRecord, ...],
        head: AdapterRecord | None,
        plan: Plan,
        adapter: memoryview,
    ) -> memoryview:
        """Adopt one page of verified records after a head; the adapter that they end with."""
        if new:
            optimiser = self._optimiser_at(new[0], head, plan, adapter)
            for record in new:
                adapter = self._adopt(record, plan, adapter, optimiser)
        return adapter

    def _optimiser_at(
        self, record: AdapterRecord, head: AdapterRecord | None, plan: Plan, adapter: memoryview
    ) -> Optimiser:
        """The run's optimiser in the state in which it takes this record."""
        run_id, optimiser = self._optimiser or ("", plan.optimiser())
        if run_id != record.run_id:
            optimiser = plan.optimiser()
        behind = head is not None and not optimiser.is_ready_for(*record.place)
        # A rollback is taken in any state.
        if head is not None and behind and record.kind != "rollback":
            layout = Layout.from_tensors(decode_adapter(adapter, max_bytes=MAX_ADAPTER_BYTES))
            dimension = plan.aggregator(layout).shared_layout(record.round).dimension
            # Not the one that is kept: a replay that fails leaves a state of nothing.
            optimiser = plan.optimiser()
            start = replay_start(optimiser, plan, record.round)
            earlier = since_rollback(self._earlier_releases(head, plan, start))
            replay(
                optimiser,
                plan=plan,
                round_number=record.round,
                dimension=dimension,
                releases=((one, self._sums_of(one, dimension)) for one in earlier),
            )
            log.info("optimiser_replayed", run=record.run_id, round=head.round, step=head.step)
        self._optimiser = (record.run_id, optimiser)
        return optimiser

    def _earlier_than(
        self, head: AdapterRecord | None, plan: Plan
    ) -> Callable[[int], AdapterRecord] | None:
        """Finds the records before a head by their positions."""
        if head is None:
            return None
        return lambda position: self._earlier_releases(head, plan, position)[0]

    def _earlier_releases(
        self, head: AdapterRecord, plan: Plan, start: int
    ) -> tuple[AdapterRecord, ...]:
        """The records from a position up to the head, which names them all by its links."""
        count = position_of(head.round, head.step, plan.sums_per_round) - start + 1
        records: tuple[AdapterRecord, ...] = ()
        while len(records) < count:
            page = self._coordinator.records(head.run_id, start + len(records))
            records = (*records, *page)
            if len(page) < RECORDS_PER_PAGE:
                break
        records = records[:count]
        for record, following in itertools.pairwise(records):
            require_link(record, following, sums_per_round=plan.sums_per_round)
        if len(records) != count or records[-1].sha256 != head.sha256:
            raise ChainMismatchError(
                f"the records up to round {head.round} step {head.step} do not lead to the one "
                "that this silo adopted"
            )
        return records

    def _sums_of(self, record: AdapterRecord, dimension: int) -> list[npt.NDArray[np.int32]]:
        most_bytes = (dimension + MAX_METRICS) * COORDINATE_BYTES
        with self._fetched_sums(record, most_bytes) as totals:
            return totals

    def _most_bytes(self, plan: Plan) -> int:
        """The longest adapter whose rounds this site would take part in."""
        # All but FedAvg upload one factor at a time, so the limit is about each of the two.
        uploads = 1 if plan.aggregation.method == FedAvg.name else 2
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
        self, record: AdapterRecord, plan: Plan, previous: memoryview, optimiser: Optimiser
    ) -> memoryview:
        """Check the bytes of one record, keep them, and only then move the head."""
        self._admit(record)
        local = self._store.adapter(record.adapter_sha256)
        if local is not None:
            self._check(record, plan, previous, local, optimiser)
            published = local
        else:
            most_bytes = len(previous) + HEADER_BYTES if previous else self._most_bytes(plan)
            with self._fetched(record.adapter_sha256, most_bytes) as incoming:
                published = incoming.content()
                self._check(record, plan, previous, published, optimiser)
                incoming.keep()
        # Before the head moves: a crash between the two says it twice, never not at all.
        self._adopting(record)
        self._store.set_chain_head(
            record.run_id,
            ChainHead(
                round=record.round,
                step=record.step,
                position=position_of(record.round, record.step, plan.sums_per_round),
                adapter_sha256=record.adapter_sha256,
                record_sha256=record.sha256,
                restored_round=record.restored_round,
            ),
        )
        log.info(
            "adapter_adopted",
            run=record.run_id,
            round=record.round,
            step=record.step,
            kind=record.kind,
            adapter=record.adapter_sha256.hex()[:12],
        )
        return published

    def _check(
        self,
        record: AdapterRecord,
        plan: Plan,
        previous: memoryview,
        published: memoryview,
        optimiser: Optimiser,
    ) -> None:
        decode_adapter(published, max_bytes=MAX_ADAPTER_BYTES)
        if record.kind == "rollback":
            optimiser.restart(round_number=record.round, step=record.step)
        if record.kind == "skipped":
            optimiser.skip(round_number=record.round, step=record.step)
        if record.kind != "aggregated":
            return
        most_bytes = len(previous) + MAX_METRICS * COORDINATE_BYTES
        with self._fetched_sums(record, most_bytes) as totals:
            # The scale follows from the plan, so a silo that missed the descriptor can verify too.
            verify_update(
                plan=plan,
                record=record,
                previous=previous,
                totals=totals,
                published=published,
                optimiser=optimiser,
            )

    @contextmanager
    def _fetched_sums(
        self, record: AdapterRecord, most_bytes: int
    ) -> Iterator[list[npt.NDArray[np.int32]]]:
        """The sums of a record by part; none where it has none."""
        with ExitStack() as files:
            yield [
                _elements(files.enter_context(self._fetched(part.sum_sha256, most_bytes)).content())
                for part in record.parts
            ]

    @contextmanager
    def _fetched(self, sha256: bytes, max_bytes: int) -> Iterator[Incoming]:
        with self._store.incoming() as incoming:
            self._coordinator.blob(sha256, incoming.file, max_bytes=max_bytes)
            yield incoming


def _elements(content: memoryview) -> npt.NDArray[np.int32]:
    if len(content) % COORDINATE_BYTES:
        raise ChainMismatchError("the published sum is not a whole number of elements")
    return np.frombuffer(content, dtype="<i4")
