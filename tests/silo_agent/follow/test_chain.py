"""The follower adopts what follows from signed records and sums, and nothing else."""

import numpy as np
import pytest

from federation.errors import ChainError, FederationError, UpdateError
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import ChainMismatchError, TransportError
from silo_agent.follow.chain import ChainFollower
from tests.kit.federation.adapters import lora, plan_of
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.silo_agent.published import KEY, RUN, Published, kept_in, require_unmoved, sync


@pytest.fixture
def published():
    return Published()


@pytest.mark.parametrize("method", ["fedavg", "rolora"])
@pytest.mark.parametrize("gauge", [False, True])
def test_a_chain_is_followed_to_its_end(store, method, gauge, tmp_path):
    published = Published(plan_of(method, gauge=gauge))
    published.round(1)
    published.skip()
    published.round(2)
    head = sync(published, store)
    assert head.record is published.chain[-1]
    for name, tensor in published.tensors.items():
        np.testing.assert_array_equal(head.tensors[name], tensor)
    # Durable: another process finds the same head and its adapter, and no other one.
    again = LocalStore(tmp_path)
    assert again.chain_head(RUN).record_sha256 == published.chain[-1].sha256
    assert again.adapter(published.chain[-1].adapter_sha256)
    assert kept_in(tmp_path) == {published.chain[-1].adapter_sha256.hex()}


def test_what_was_adopted_is_not_fetched_again(published, store):
    published.round(1)
    sync(published, store)
    published.fetched.clear()
    assert sync(published, store).record.round == 1
    published.round(2)
    sync(published, store)
    old = {record.adapter_sha256 for record in published.chain[:2]}
    assert not old & set(published.fetched)


def test_no_records_are_refused(published, store):
    published.chain.clear()
    require_unmoved(published, store, ChainError, -1)


def test_a_fork_is_refused(published, store):
    published.round(1)
    sync(published, store)
    published.chain.pop()
    published.tensors = lora(1, b_scale=0.0)
    published.round(2)
    published.round(3)
    require_unmoved(published, store, ChainMismatchError, 1, "fork")


def test_lost_records_are_refused(published, store):
    published.round(1)
    published.round(2)
    sync(published, store)
    published.chain.pop()
    require_unmoved(published, store, ChainMismatchError, 2, "lost records")


def test_a_gap_is_refused(published, store):
    published.round(1)
    published.round(2)
    del published.chain[1]
    require_unmoved(published, store, ChainError, -1)


def test_another_runs_chain_is_refused(published, store):
    published.round(1)
    follower = ChainFollower(coordinator=published, store=store)
    with pytest.raises(ChainMismatchError, match="another run"):
        follower.sync("run-2", lambda _sha256: published.plan, KEY)
    assert store.chain_heads() == {}


def test_a_record_signed_by_another_is_refused(published, store):
    total, tensors = published.after(1)
    published.add("aggregated", tensors, total, key=signing_key("mallory"))
    require_unmoved(published, store, ChainError, -1, "not signed")


def test_a_wrong_sum_is_refused_and_the_head_stays(published, store):
    published.round(1)
    sync(published, store)
    total, tensors = published.after(2)
    total[0] += 1000
    published.add("aggregated", tensors, total)
    require_unmoved(published, store, UpdateError, 1, "byte for byte")


def test_a_substituted_adapter_is_refused_and_the_head_stays(published, store):
    published.round(1)
    sync(published, store)
    total, _ = published.after(2)
    published.add("aggregated", lora(9), total)
    require_unmoved(published, store, UpdateError, 1)
    # Not kept either.
    assert store.adapter(published.chain[-1].adapter_sha256) is None


def test_the_good_part_of_a_chain_is_adopted(published, store):
    published.round(1)
    total, _ = published.after(2)
    published.add("aggregated", lora(9), total)
    with pytest.raises(UpdateError):
        sync(published, store)
    assert store.chain_head(RUN).round == 1


def test_a_sum_that_is_cut_or_missing_is_refused(published, store):
    published.round(1)
    digest = published.chain[1].sum_sha256
    whole = published.blobs[digest]
    for content, error in ((whole[:-4], UpdateError), (whole[:-1], ChainMismatchError)):
        published.blobs[digest] = content
        with pytest.raises(error):
            sync(published, store)
    del published.blobs[digest]
    with pytest.raises(TransportError):
        sync(published, store)
    assert store.chain_head(RUN).round == 0
    published.blobs[digest] = whole
    assert sync(published, store).record.round == 1


def test_an_adapter_that_does_not_parse_or_is_not_finite_is_refused(published, store):
    broken = {name: tensor.copy() for name, tensor in published.tensors.items()}
    published.chain.clear()
    digest = published.put(b"no adapter")
    published.add("initial", broken, adapter_sha256=digest)
    require_unmoved(published, store, FederationError, -1)


def test_a_damaged_kept_adapter_is_fetched_again(published, store, tmp_path):
    published.round(1)
    sync(published, store)
    digest = published.chain[1].adapter_sha256
    (tmp_path / "adapters" / digest.hex()).write_bytes(b"rot")
    published.round(2)
    published.fetched.clear()
    assert sync(published, store).record.round == 2
    assert digest in published.fetched
    assert kept_in(tmp_path) == {published.chain[2].adapter_sha256.hex()}


def test_a_lost_head_is_fetched_and_kept_again(published, store, tmp_path):
    published.round(1)
    sync(published, store)
    digest = published.chain[1].adapter_sha256
    (tmp_path / "adapters" / digest.hex()).unlink()
    assert sync(published, store).record.round == 1
    assert store.adapter(digest) == published.blobs[digest]


def test_the_heads_tensors_are_views_of_the_kept_file(published, store):
    published.round(1)
    head = sync(published, store)
    for tensor in head.tensors.values():
        assert not tensor.flags.writeable
        assert not tensor.flags.owndata


def test_nothing_of_a_refused_link_stays_on_disk(published, store, tmp_path):
    published.round(1)
    total, _ = published.after(2)
    published.add("aggregated", lora(9), total)
    with pytest.raises(UpdateError):
        sync(published, store)
    assert kept_in(tmp_path) == {published.chain[1].adapter_sha256.hex()}


@pytest.mark.parametrize(("method", "uploads"), [("fedavg", 1), ("rolora", 2)])
def test_what_may_be_fetched_is_bounded_by_what_is_known(store, method, uploads):
    published = Published(plan_of(method))
    published.round(1)
    allowed = {}
    blob = published.blob

    def noted(sha256, sink, *, max_bytes):
        allowed[sha256] = max_bytes
        blob(sha256, sink, max_bytes=max_bytes)

    published.blob = noted
    follower = ChainFollower(coordinator=published, store=store, max_dimension=1000)
    follower.sync(RUN, lambda _sha256: published.plan, KEY)
    initial, first = published.chain
    header = (16 << 20) + 8
    size = len(published.blobs[initial.adapter_sha256])
    assert allowed == {
        initial.adapter_sha256: uploads * 4000 + header,
        first.adapter_sha256: size + header,
        first.sum_sha256: size + 4 * 1024,
    }
    # The limit of a site that sets none is the protocol's, within what an adapter may have.
    allowed.clear()
    store.adapter = lambda _sha256: None
    ChainFollower(coordinator=published, store=store).sync(RUN, lambda _sha256: published.plan, KEY)
    assert allowed == {first.adapter_sha256: min(uploads * 2**29 + header, 2**30)}
