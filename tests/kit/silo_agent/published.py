"""What a coordinator publishes, and a silo that follows it."""

from dataclasses import replace

import numpy as np
import pytest

from federation.adapter.encoding import adapter_sha256, encode_adapter
from federation.adapter.layout import Layout
from federation.chain.record import AdapterRecord, place_at
from federation.chain.sums import encode_sum, mean_of_release, sum_sha256
from secagg.suite import verification_key
from silo_agent.errors import TransportError
from silo_agent.follow.chain import ChainFollower
from tests.kit.federation.adapters import lora, plan_of
from tests.kit.federation.records import one_sum
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY

KEY = verification_key(COORDINATOR_KEY)
RUN = "run-1"
SURVIVORS = ("silo-000", "silo-001", "silo-002")


class Published:
    """A coordinator's blobs and records, as the transport hands them to a silo."""

    def __init__(self, plan=None):
        self.plan = plan or plan_of("fedavg")
        self.blobs = {}
        self.chain = []
        self.tensors = lora(1, b_scale=0.0)
        self.fetched, self.asked = [], []
        self.optimiser = self.plan.optimiser()
        self.add("initial", self.tensors)

    def records(self, run_id, from_position):
        self.asked.append(from_position)
        return tuple(self.chain[from_position:])

    def blob(self, sha256, sink, *, max_bytes):
        self.fetched.append(sha256)
        if sha256 not in self.blobs:
            raise TransportError("no such blob")
        sink.write(self.blobs[sha256])

    def put(self, content):
        digest = adapter_sha256(content)
        self.blobs[digest] = content
        return digest

    def add(self, kind, tensors, total=None, *, key=COORDINATOR_KEY, **changes):
        parent = self.chain[-1] if self.chain else None
        content = b"" if total is None else encode_sum(total)
        self.blobs[sum_sha256(content)] = content
        place = place_at(len(self.chain), self.plan.sums_per_round)
        record = AdapterRecord(
            run_id=RUN,
            round=place.round,
            step=place.step,
            kind=kind,
            adapter_sha256=self.put(encode_adapter(tensors)),
            plan_sha256=bytes(32),
            base_model_sha256=bytes(32),
            parent_sha256=parent.adapter_sha256 if parent else b"",
            record_parent_sha256=parent.sha256 if parent else b"",
            parts=one_sum(
                descriptor_sha256=bytes(32), sum_sha256=sum_sha256(content), survivors=SURVIVORS
            )
            if kind == "aggregated"
            else (),
        )
        self.chain.append(replace(record, **changes).sign(key))
        self.tensors = tensors

    def after(self, seed):
        """A sum, and the adapter that follows from it."""
        layout = Layout.from_tensors(self.tensors)
        aggregator = self.plan.aggregator(layout)
        place = place_at(len(self.chain), self.plan.sums_per_round)
        shared = aggregator.shared_layout(place.round).dimension
        total = np.random.default_rng(seed).integers(-(2**18), 2**18, shared + 3)
        mean = mean_of_release(self.plan, total[:shared], len(SURVIVORS))
        move = self.optimiser.move(mean, round_number=place.round, step=place.step)
        if self.plan.is_last_step(place.step):
            return total, aggregator.apply(self.tensors, move, place.round)
        return total, aggregator.apply_ungauged(self.tensors, move, place.round)

    def round(self, seed=7):
        total, tensors = self.after(seed)
        self.add("aggregated", tensors, total)

    def skip(self):
        place = place_at(len(self.chain), self.plan.sums_per_round)
        self.optimiser.skip(round_number=place.round, step=place.step)
        self.add("skipped", self.tensors)


def kept_in(directory):
    return {path.name for path in (directory / "adapters").iterdir()}


def sync(published, store):
    follower = ChainFollower(coordinator=published, store=store)
    return follower.sync(RUN, lambda _sha256: published.plan, KEY)


def require_unmoved(published, store, error, at, match=None):
    """The follower refuses, and the head stays where it was."""
    before = store.chain_head(RUN)
    with pytest.raises(error, match=match):
        sync(published, store)
    assert store.chain_head(RUN) == before
    assert (-1 if before is None else before.round) == at
