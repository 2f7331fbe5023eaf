"""How a silo comes to believe a roster: from the root, or step by step by members' approvals."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from secagg import suite
from secagg.errors import Check, VerificationError
from secagg.roster import SignedRoster, approve_roster
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import SessionError
from silo_agent.follow.published import fetch_roster
from tests.kit.secagg.secagg_samples import (
    ROOT_KEY,
    make_roster,
    signed_roster,
    signing_key,
    silo_names,
)

IDENTITY = SimpleNamespace(root_key=suite.verification_key(ROOT_KEY), federation="example")


def approved(before, after, count):
    return SignedRoster(
        roster=after,
        signature=b"",
        approvals=tuple(
            approve_roster(before, after, name, signing_key(name)) for name in silo_names(count)
        ),
    )


class Publisher:
    """Epoch 1 is the root's; each later one adds a silo, by just enough members."""

    def __init__(self, last, first=1, missing=0):
        rosters = [make_roster(3 + epoch, epoch=epoch) for epoch in range(first, last + 1)]
        self.chain = [signed_roster(rosters[0])]
        for before, after in pairwise(rosters):
            k = max((len(before.entries) + 1) // 2 + 1, 3)
            self.chain.append(approved(before, after, k - missing))
        self.asked = []

    def roster(self):
        return self.chain[-1]

    def rosters(self, from_epoch):
        self.asked.append(from_epoch)
        earlier = (one for one in self.chain[:-1] if one.roster.epoch >= from_epoch)
        return (*earlier, self.chain[-1])


def fetch(publisher, store, roster=None):
    wanted = (roster or publisher.roster().roster).sha256
    return fetch_roster(publisher, identity=IDENTITY, store=store, roster_sha256=wanted).roster


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def test_the_roots_word_needs_no_history(store):
    publisher = Publisher(1)
    assert fetch(publisher, store).epoch == 1
    assert publisher.asked == []


def test_a_newcomer_follows_from_the_roots_roster(store):
    publisher = Publisher(4)
    assert fetch(publisher, store).epoch == 4
    assert (publisher.asked, store.newest_roster_epoch()) == ([0], 4)
    # A restart asks for nothing: the digest is remembered.
    assert fetch(publisher, LocalStore(store._directory)).epoch == 4
    assert publisher.asked == [0]


def test_a_silo_that_missed_epochs_follows_from_what_it_knows(store):
    fetch(Publisher(2), store)
    publisher = Publisher(5)
    publisher.chain = publisher.chain[1:]
    assert fetch(publisher, store).epoch == 5
    assert publisher.asked == [2]


def refused(publisher, store):
    before = store.newest_roster_epoch(), store.newest_roster_sha256()
    with pytest.raises(VerificationError) as caught:
        fetch(publisher, store)
    assert (store.newest_roster_epoch(), store.newest_roster_sha256()) == before
    return caught.value


def test_a_gap_is_refused_with_what_is_missing(store):
    fetch(Publisher(2), store)
    publisher = Publisher(5)
    del publisher.chain[1:3]
    error = refused(publisher, store)
    assert error.check is Check.ROSTER_APPROVALS
    assert "epoch 4 was approved by members of a roster that is not the newest" in str(error)


def test_too_few_approvals_anywhere_in_the_chain_are_refused(store):
    fetch(Publisher(1), store)
    assert refused(Publisher(4, missing=1), store).check is Check.ROSTER_APPROVALS


def test_a_coordinator_cannot_begin_again_at_an_older_roster(store):
    """The root's epoch 1 is genuine, and so are the approvals after it, but time went on."""
    fetch(Publisher(5), store)
    publisher = Publisher(3)
    assert refused(publisher, store).check is Check.ROSTER_EPOCH
    # Also if it does not say where the silo may go on, but shows everything.
    publisher.rosters = lambda _from_epoch: tuple(publisher.chain)
    assert refused(publisher, store).check is Check.ROSTER_EPOCH


def test_another_branch_of_the_chain_is_refused(store):
    fetch(Publisher(3), store)
    other = Publisher(2)
    branch = make_roster(9, epoch=3)
    other.chain.append(approved(other.chain[-1].roster, branch, 5))
    other.chain.append(approved(branch, make_roster(10, epoch=4), 6))
    assert refused(other, store).check is Check.ROSTER_EPOCH
    # Even if it leaves out what this silo would not accept.
    other.chain = other.chain[-1:]
    assert refused(other, store).check is Check.ROSTER_APPROVALS


def test_the_message_at_hand_names_the_roster(store):
    publisher = Publisher(3)
    with pytest.raises(SessionError):
        fetch(publisher, store, publisher.chain[1].roster)
    assert store.newest_roster_epoch() == 0
