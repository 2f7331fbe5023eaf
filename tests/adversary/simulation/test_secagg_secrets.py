"""Secrets are never printed, copied or kept, and unexpected messages change nothing."""

import copy
import pickle
from dataclasses import replace

import pytest

from secagg import client
from secagg.errors import (
    UnexpectedMessageError,
)
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import ME, masked_input_state

pytestmark = pytest.mark.parametrize("suite", [1, 2])


def _live_states(suite):
    """One live state of each kind, with a secret in hand and the message it waits for."""
    for step in ("share_keys", "masked_input", "consistency_check", "unmask"):
        cohort = Cohort(5, suite=suite)
        message = cohort.until(step)
        message = message[ME] if step == "masked_input" else message
        yield cohort.states[ME], message
    yield masked_input_state(suite=suite)[1], None


def test_a_message_of_another_step_changes_nothing(suite):
    states = list(_live_states(suite))
    messages = [message for _, message in states if message is not None]
    for state, own in states:
        for message in [*messages, None, b"bytes", object()]:
            if message is own and message is not None:
                continue
            if type(message) is type(own) and message is not None:
                continue
            with pytest.raises(UnexpectedMessageError):
                state.handle(message)
            assert state.aborted is None
        if own is not None:
            state.handle(own)


def test_secrets_are_never_printed_or_serialised(suite):
    for state, _ in _live_states(suite):
        secrets = [bytes(secret) for secret in state._vault._items.values()]
        assert secrets
        shown = repr(state) + str(state) + repr(state._vault) + repr(state._membership)
        shown += "".join(repr(getattr(state, slot)) for slot in type(state).__slots__)
        for secret in secrets:
            for form in (secret.hex(), repr(secret), repr(secret)[2:-1], str(list(secret))):
                assert form not in shown
        for copying in (pickle.dumps, copy.copy, copy.deepcopy):
            for thing in (state, state._vault):
                with pytest.raises(TypeError):
                    copying(thing)


def test_shares_and_keys_of_messages_are_not_printed(suite):
    cohort = Cohort(5, suite=suite)
    unmasking = cohort.run().unmasking
    for shares in cohort.sent.values():
        for share in shares.self_seed_shares:
            assert share.share.hex() not in repr(shares)
            assert repr(share.share)[2:-1] not in repr(shares)
    assert "key" not in repr(unmasking)
    assert "PrivateKey" not in repr(cohort.setup(ME))


def test_a_fault_while_acting_erases_the_secrets(suite):
    cohort = Cohort(5, suite=suite)
    bundles = cohort.advertise()

    def broken(_size: int) -> bytes:
        raise OSError("no entropy")

    state = cohort.states[ME]
    state._membership = replace(state._membership, entropy=broken)
    with pytest.raises(OSError, match="no entropy"):
        state.handle(bundles)
    assert repr(state._vault) == "Vault(0 secrets)"
    assert state.aborted.check is None


def test_wipe_overwrites_the_memory(suite):
    state, _ = client.begin(Cohort(5, suite=suite).setup(ME))
    secrets = list(state._vault._items.values())
    assert all(any(secret) for secret in secrets)
    state.wipe()
    assert not any(any(secret) for secret in secrets)


def test_wiping_a_state_that_is_over_leaves_the_next_one_alone(suite):
    cohort = Cohort(5, suite=suite)
    bundles = cohort.advertise()
    first = cohort.states[ME]
    following, _ = first.handle(bundles)
    first.wipe()
    assert following.aborted is None
    assert following._vault.has("own_seed", ME)
