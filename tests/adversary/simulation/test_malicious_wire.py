"""Attack 3 at large: protobuf bytes that nobody honest wrote, put before every state of both sides.

A genuine message of each step is mangled as bytes and as fields, decoded, and shown to the state
that waits for it. A failure: any error that is not typed, a state that changes at bytes which do
not decode, a secret or a message left after a refusal, or a coordinator that stops hearing the
honest silos. Not a failure: mangled bytes that decode to the genuine message.
"""

from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from chorale.v1 import secagg_pb2 as pb
from secagg import client, wire
from secagg.errors import (
    MalformedMessageError,
    SecAggError,
    UnexpectedMessageError,
    VerificationError,
)
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import ME, PEER

SILO_STEPS = {
    "share_keys": ("key_bundles", pb.KeyBundles),
    "masked_input": ("box_delivery", pb.BoxDelivery),
    "consistency_check": ("survivors", pb.Survivors),
    "unmask": ("consistency_signatures", pb.ConsistencySignatures),
}
COORDINATOR_STEPS = {
    "advertise_keys": ("key_bundle", pb.KeyBundle),
    "share_keys": ("share_boxes", pb.ShareBoxes),
    "masked_input": ("masked_input_header", pb.MaskedInputHeader),
    "consistency_check": ("consistency_signature", pb.ConsistencySignature),
    "unmask": ("unmasking_shares", pb.UnmaskingShares),
}


@st.composite
def mangled(draw: Any, genuine: bytes) -> bytes:
    """Flip, delete, insert, cut, repeat or exchange pieces of the bytes, a few times."""
    sent = bytearray(genuine)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(sent) - 1, 0)))
        length = draw(st.integers(1, 40))
        action = draw(st.sampled_from(["flip", "delete", "insert", "cut", "repeat", "random"]))
        if action == "flip" and sent:
            sent[at] ^= 1 << draw(st.integers(0, 7))
        elif action == "delete":
            del sent[at : at + length]
        elif action == "insert":
            sent[at:at] = draw(st.binary(min_size=1, max_size=40))
        elif action == "cut":
            del sent[at:]
        elif action == "repeat":
            sent[at:at] = sent[at : at + length]
        else:
            sent[:] = draw(st.binary(max_size=400))
    return bytes(sent)


def decoded(name: str, proto: Any, content: bytes) -> Any:
    """The message, or None: nothing but the two typed errors may come out of the decoder."""
    try:
        return getattr(wire, f"{name}_from_proto")(proto.FromString(content))
    except (DecodeError, MalformedMessageError):
        return None


def encoded(name: str, message: Any) -> bytes:
    return bytes(getattr(wire, f"{name}_to_proto")(message).SerializeToString())


def waiting(step: str) -> tuple[Any, Any]:
    """A silo's live state before a step, and the genuine message it waits for."""
    cohort = Cohort(4, dimension=3)
    told = cohort.until(step)
    return cohort.states[ME], told[ME] if step == "masked_input" else told


def is_part_of(message: Any, genuine: Any) -> bool:
    """Whether a message says nothing that the genuine one does not say."""
    for field in fields(genuine):
        said, truth = getattr(message, field.name), getattr(genuine, field.name)
        if isinstance(truth, dict):
            said, truth = said.items(), truth.items()
        if not all(item in truth for item in said):
            return False
    return True


def take(state: Any, message: Any, genuine: Any) -> None:
    """Show a message to a state and look at what is left of it."""
    if message == genuine:
        state.handle(message)
        return
    if is_part_of(message, genuine):
        # Fewer silos answered, for all this silo can tell: whether it is enough is for its rules.
        with suppress(VerificationError):
            state.handle(message)
        return
    with pytest.raises(SecAggError) as caught:
        state.handle(message)
    assert not isinstance(caught.value, UnexpectedMessageError)
    assert isinstance(state.aborted, client.Aborted)
    assert state.aborted.check is caught.value.check
    assert repr(state._vault) == "Vault(0 secrets)"
    with pytest.raises(UnexpectedMessageError):
        state.handle(genuine)


@pytest.mark.parametrize("step", sorted(SILO_STEPS))
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_mangled_bytes_before_a_silo_are_refused_or_genuine(step, data):
    """Attack 3: A03w. Each step of a silo, genuine bytes mangled."""
    name, proto = SILO_STEPS[step]
    state, genuine = waiting(step)
    message = decoded(name, proto, data.draw(mangled(encoded(name, genuine))))
    if message is None:
        # Bytes that do not decode never reach the state: it still answers the genuine ones.
        state.handle(genuine)
    else:
        take(state, message, genuine)


def leaves_of(message: Any) -> list[tuple[Any, Any, int | None]]:
    """Every scalar that is set: its message, its field, and its place if the field repeats."""
    found: list[tuple[Any, Any, int | None]] = []
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        repeated = hasattr(value, "extend")
        items = list(value) if repeated else [value]
        for place, item in enumerate(items):
            if field.message_type is not None:
                found += leaves_of(item)
            else:
                found.append((message, field, place if repeated else None))
    return found


def other_value(data: st.DataObject, old: Any) -> Any:
    if isinstance(old, bytes):
        size = data.draw(st.sampled_from([len(old), len(old) - 1, len(old) + 1, 0]))
        return data.draw(st.binary(min_size=max(size, 0), max_size=max(size, 0)))
    if isinstance(old, str):
        return data.draw(st.sampled_from([ME, PEER, "silo-000", "silo-002", "stranger", "", "é"]))
    return data.draw(st.sampled_from([0, 1, old + 1, max(old - 1, 0), 2**32 - 1]))


@pytest.mark.parametrize("step", sorted(SILO_STEPS))
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_other_field_before_a_silo_is_refused(step, data):
    """Attack 3: A03x. One scalar of a genuine message takes another value of its own kind."""
    name, proto = SILO_STEPS[step]
    state, genuine = waiting(step)
    altered = proto.FromString(encoded(name, genuine))
    owner, field, place = data.draw(st.sampled_from(leaves_of(altered)))
    old = getattr(owner, field.name) if place is None else getattr(owner, field.name)[place]
    value = other_value(data, old)
    if place is None:
        setattr(owner, field.name, value)
    else:
        getattr(owner, field.name)[place] = value
    message = decoded(name, proto, altered.SerializeToString())
    if message is None:
        state.handle(genuine)
    else:
        take(state, message, genuine)


class Turn:
    """The coordinator's state before one silo's answer, and that answer."""

    def __init__(self, step: str) -> None:
        self.cohort = Cohort(4, dimension=3)
        cohort = self.cohort
        if step == "advertise_keys":
            self.state = cohort.server
            sent = {name: client.begin(cohort.setup(name))[1] for name in cohort.names}
            self.messages = sent
            return
        told = cohort.until(step)
        self.state = cohort.server
        self.messages = {}
        for name in cohort.names:
            message = told[name] if step == "masked_input" else told
            state, answer = cohort.states[name].handle(message)
            if step == "masked_input":
                vector = (cohort.plain(name) % 2**32).astype("<u4")
                state, answer = state.mask(vector)
            cohort.states[name], self.messages[name] = state, answer

    def receive(self, message: Any) -> Any:
        take_in = getattr(self.state, "expect", None) or self.state.receive
        return take_in(message)


@pytest.mark.parametrize("step", sorted(COORDINATOR_STEPS))
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_mangled_bytes_before_the_coordinator_cost_nobody_else(step, data):
    """Malicious silos: what one of them sends is refused by a typed error, the others are heard."""
    name, proto = COORDINATOR_STEPS[step]
    turn = Turn(step)
    genuine = turn.messages[PEER]
    message = decoded(name, proto, data.draw(mangled(encoded(name, genuine))))
    heard = False
    if message is not None:
        try:
            heard = turn.receive(message)
        except SecAggError:
            heard = False
        else:
            assert heard
            assert message == genuine
    for silo, answer in turn.messages.items():
        assert turn.receive(answer) is not (heard and silo == PEER)
