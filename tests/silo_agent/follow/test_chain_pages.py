"""A chain of more records than a page is followed to its end, and no chain is endless."""

import pytest

from chorale.v1 import admin_pb2, round_pb2
from federation.chain.record import MAX_PARTS, AdapterRecord
from federation.errors import ChainError
from federation.wire import RECORDS_PER_PAGE, record_to_proto
from server.cli.client import MAX_MESSAGE_BYTES
from silo_agent.line import transport
from tests.kit.federation.adapters import plan_of, record_plan
from tests.kit.federation.records import one_sum
from tests.kit.silo_agent.published import RUN, Published, sync

PAGE = 3


class Paged(Published):
    """A coordinator that answers with a page at a time."""

    page = PAGE

    def records(self, run_id, from_position):
        return super().records(run_id, from_position)[: self.page]


def plan_of_rounds(count):
    plan = plan_of("fedavg")
    return plan.model_copy(update={"rounds": plan.rounds.model_copy(update={"count": count})})


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    monkeypatch.setattr("silo_agent.follow.chain.RECORDS_PER_PAGE", PAGE)


@pytest.mark.parametrize("length", [2, 3, 4, 6, 8])
def test_every_page_is_followed(store, length):
    published = Paged(plan_of_rounds(20))
    for number in range(length - 1):
        if number % 2:
            published.round(number)
        else:
            published.skip()
    assert sync(published, store).record is published.chain[-1]
    assert published.asked == list(range(0, length + 1, PAGE))
    # From the adopted head on, which is the first record of its page.
    for number in range(PAGE + 1):
        published.round(100 + number)
    assert sync(published, store).record is published.chain[-1]


def test_a_page_of_no_more_records_than_a_page_has_ends_the_chain(store):
    """A coordinator that shows less of the chain shows an older head, and the task does not fit."""
    published = Paged(plan_of_rounds(20))
    for _ in range(5):
        published.skip()
    shown = published.chain
    published.chain = shown[:2]
    assert sync(published, store).record is shown[1]


def test_a_link_that_breaks_between_pages_is_found_and_what_came_before_is_kept(store):
    published = Paged(plan_of_rounds(20))
    for _ in range(5):
        published.skip()
    del published.chain[PAGE]
    with pytest.raises(ChainError):
        sync(published, store)
    assert store.chain_head(RUN).record_sha256 == published.chain[PAGE - 1].sha256


class Endless(Paged):
    """A coordinator that signs record after record for as long as it is asked."""

    def records(self, run_id, from_position):
        if len(self.asked) > 20:
            pytest.fail("asked for pages without end")
        while len(self.chain) < from_position + PAGE:
            self.skip()
        return super().records(run_id, from_position)


@pytest.mark.parametrize("rounds", [1, 5, 7])
def test_a_coordinator_that_pages_for_ever_is_left_at_the_plans_end(store, rounds):
    published = Endless(plan_of_rounds(rounds))
    with pytest.raises(ChainError, match=f"more than the {rounds + 1} records"):
        sync(published, store)
    assert len(published.asked) <= rounds // PAGE + 2
    # Nor does asking again go further.
    with pytest.raises(ChainError, match="more than the"):
        sync(published, store)
    head = store.chain_head(RUN)
    assert head is None or head.position <= rounds


def test_the_same_page_over_and_over_is_no_chain(store):
    published = Paged(plan_of_rounds(20))
    for _ in range(5):
        published.skip()
    first = published.records(RUN, 0)
    published.records = lambda *_: first
    with pytest.raises(ChainError, match="follows"):
        sync(published, store)


def test_the_earlier_steps_of_a_round_come_in_pages(store, monkeypatch):
    """After a restart the optimiser is rebuilt from all steps of the round, not from one page."""
    monkeypatch.setattr("silo_agent.follow.chain.RECORDS_PER_PAGE", 1)
    published = Paged(record_plan("record_distributed", method="fedavg"))
    published.page = 1
    published.round(1)
    published.round(2)
    sync(published, store)
    published.round(3)
    published.asked.clear()
    assert sync(published, store).record is published.chain[-1]
    # The adopted record and the one after it; then the round from its first step on.
    assert published.asked[:4] == [2, 3, 1, 2]


def test_a_page_of_the_longest_records_fits_every_message():
    """200 survivors with names of 63 characters, in 16 sums: a silo takes 8 MiB, the CLI 4 MiB."""
    names = tuple(f"{n:03}".ljust(63, "a") for n in range(200))
    longest = AdapterRecord(
        run_id="r" * 128, round=2**32 - 1, step=2**32 - 1, kind="aggregated",
        adapter_sha256=bytes(32), plan_sha256=bytes(32), base_model_sha256=bytes(32),
        parent_sha256=bytes(32), record_parent_sha256=bytes(32), suite=2, signature=bytes(64),
        parts=tuple(
            part
            for number in range(MAX_PARTS)
            for part in one_sum(part=2**32 - MAX_PARTS + number, survivors=names[number::MAX_PARTS])
        ),
    )  # fmt: skip
    page = [record_to_proto(longest)] * RECORDS_PER_PAGE
    assert round_pb2.ListRecordsResponse(records=page).ByteSize() < transport.MAX_MESSAGE_BYTES
    assert admin_pb2.ListAdaptersResponse(records=page).ByteSize() < 0.95 * MAX_MESSAGE_BYTES
