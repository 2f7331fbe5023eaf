"""Attack 12 and its kin from a silo's side: second, foreign, late, short and long messages.

A failure: a round that the message of one silo can spoil, or a refusal that names somebody else.
Not a failure: a silo that is left out of the sum because what it sent is not for it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from secagg import suite, transcript
from secagg.errors import Check, UnexpectedMessageError, VerificationError
from secagg.messages import KeyBundles
from server.attempt.accumulator import Accumulator
from server.errors import UploadError
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.simulation.secagg_tampering import ME, PEER, flip, signed_bundle
from tests.kit.simulation.session_federation import (
    DIMENSION,
    ROUND,
    Attempt,
    Federation,
    assert_usable,
    identity_of,
)
from tests.kit.simulation.spoiled import resigned, spoiled

# Equivocation, replays, foreign names ------------------------------------------------------------


class Nonsense(NamedTuple):
    """A message of one silo at one step, and the check that refuses it by name."""

    id: str
    step: str
    forge: Callable[[Attempt, Any], Any]
    check: Check
    named: str = PEER


def second_boxes(attempt: Attempt, boxes: Any) -> Any:
    altered = replace(boxes, self_seed_commitment=bytes(32))
    signed = altered.header().signed_bytes(attempt.ctx)
    return replace(altered, signature=suite.sign(signing_key(PEER), signed))


def upload_of(attempt: Attempt, header: Any, signer: str = PEER, **changes: Any) -> Any:
    altered = replace(header, **changes)
    signed = altered.signed_bytes(attempt.ctx, attempt.members.sha256)
    return replace(altered, signature=suite.sign(signing_key(signer), signed))


def under_another_ctx(attempt: Attempt, header: Any) -> Any:
    signed = header.signed_bytes(bytes(32), attempt.members.sha256)
    return replace(header, signature=suite.sign(signing_key(PEER), signed))


def boxes_under_another_ctx(attempt: Attempt, boxes: Any) -> Any:
    signed = boxes.header().signed_bytes(bytes(32))
    return replace(boxes, signature=suite.sign(signing_key(PEER), signed))


def of_another_silo(attempt: Attempt, header: Any) -> Any:
    return upload_of(attempt, replace(header, silo_id="silo-004"), signer=PEER)


NONSENSE = (
    Nonsense("second-bundle", "advertise_keys", lambda a, _: signed_bundle(a, PEER),
             Check.DUPLICATE),
    Nonsense("foreign-bundle", "advertise_keys",
             lambda a, m: replace(m, silo_id="silo-004"), Check.BUNDLE_SIGNATURE, "silo-004"),
    Nonsense("strangers-bundle", "advertise_keys", lambda a, m: replace(m, silo_id="stranger"),
             Check.SENDER, "stranger"),
    Nonsense("second-boxes", "share_keys", second_boxes, Check.DUPLICATE),
    Nonsense("foreign-boxes", "share_keys",
             lambda a, m: replace(
                 m, sender="silo-004",
                 boxes=tuple(b for b in m.boxes if b.recipient != "silo-004")),
             Check.SHARE_SIGNATURE, "silo-004"),
    Nonsense("boxes-of-another-ctx", "share_keys",
             boxes_under_another_ctx, Check.DUPLICATE),
    Nonsense("second-upload", "upload",
             lambda a, m: upload_of(a, m, masked_sha256=bytes(32)), Check.DUPLICATE),
    Nonsense("foreign-upload", "upload", of_another_silo, Check.UPLOAD_SIGNATURE, "silo-004"),
    Nonsense("strangers-upload", "upload",
             lambda a, m: replace(m, silo_id="stranger"), Check.SENDER, "stranger"),
    Nonsense("second-agreement", "check_consistency",
             lambda a, m: replace(m, signature=flip(m.signature)), Check.DUPLICATE),
    Nonsense("foreign-agreement", "check_consistency",
             lambda a, m: replace(m, silo_id="silo-004"), Check.AGREEMENT_SIGNATURES, "silo-004"),
    Nonsense("strangers-agreement", "check_consistency",
             lambda a, m: replace(m, silo_id="stranger"), Check.SENDER, "stranger"),
    Nonsense("second-release", "unmask",
             lambda a, m: resigned(a, m, self_seed_shares=spoiled(m.self_seed_shares)),
             Check.DUPLICATE),
    Nonsense("foreign-release", "unmask", lambda a, m: replace(m, silo_id="silo-004"),
             Check.UNMASK_SIGNATURE, "silo-004"),
    Nonsense("strangers-release", "unmask", lambda a, m: replace(m, silo_id="stranger"),
             Check.SENDER, "stranger"),
)  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda nonsense: nonsense.id)
def test_a_message_of_one_silo_cannot_spoil_the_round(tmp_path, monkeypatch, nonsense):
    """Equivocation, other silos' names and strangers: refused by name, the sum stands.

    The message comes after the genuine one of the same silo and before the last silo's.
    """
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    refused = []

    def tried(receive: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def receiving(message: Any) -> Any:
            taken = receive(message)
            sender = getattr(message, "silo_id", getattr(message, "sender", None))
            if sender == PEER and type(message) is type(federation[PEER].last(nonsense.step)):
                with pytest.raises(VerificationError) as caught:
                    receive(nonsense.forge(attempt, message))
                refused.append((caught.value.check, caught.value.silo))
            return taken

        return receiving

    name = "expect" if nonsense.step == "upload" else "receive"
    told: Any = None
    steps: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("advertise_keys", lambda _: attempt.advertise()),
        ("share_keys", attempt.share),
        ("upload", attempt.upload),
        ("check_consistency", attempt.agree),
        ("unmask", attempt.unmask),
    )
    for step, act in steps:
        with monkeypatch.context() as patch:
            if step == nonsense.step:
                kind = type(attempt.server)
                real = getattr(kind, name)
                patch.setattr(
                    kind, name, lambda self, message, real=real: tried(
                        lambda m: real(self, m))(message)
                )  # fmt: skip
            told = act(told)
    assert refused == [(nonsense.check, nonsense.named)]
    np.testing.assert_array_equal(told, federation.expected(federation.names))
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


@pytest.mark.parametrize("alter", [under_another_ctx, None], ids=["another-ctx", "wrong-length"])
def test_an_upload_that_is_not_for_this_sum_is_dropped_by_name(tmp_path, alter):
    """Wrong ctx and wrong ring length at the first word of an upload: the round goes on without."""
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    deliveries = attempt.until("masked_input")
    federation[PEER].tell(deliveries[PEER])
    header = federation[PEER].last("upload")
    if alter is None:
        for length_bytes in (4, header.length_bytes - 4, header.length_bytes + 4):
            with pytest.raises(VerificationError) as caught:
                attempt.server.expect(upload_of(attempt, header, length_bytes=length_bytes))
            assert (caught.value.check, caught.value.silo) == (Check.MASKED_LENGTH, PEER)
    else:
        with pytest.raises(VerificationError) as caught:
            attempt.server.expect(alter(attempt, header))
        assert (caught.value.check, caught.value.silo) == (Check.UPLOAD_SIGNATURE, PEER)
    collect = attempt.server
    for name in federation.names:
        if name == PEER:
            continue
        member = federation[name]
        member.tell(deliveries[name])
        collect.expect(member.last("upload"))
        collect.completed(name, member.last("upload").masked_sha256)
        attempt.accumulator += member.uploads[attempt.identity]
    attempt.server, survivors = collect.close()
    told = attempt.agree(dict.fromkeys(federation.names, survivors))
    rest = [name for name in federation.names if name != PEER]
    np.testing.assert_array_equal(attempt.unmask(told), federation.expected(rest))
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


@pytest.mark.parametrize("how", ["truncated", "extended", "altered", "twice"])
def test_a12j_bytes_that_are_not_the_signed_ones_never_enter_the_sum(tmp_path, how):
    """Attack 12: the stream is shorter, longer, or other than the header says."""
    words = DIMENSION + 1
    accumulator = Accumulator(tmp_path / "sum", length=words)
    committed: list[int] = []
    content = np.arange(words, dtype="<u4").tobytes()
    digest = hashlib.sha256(content).digest()
    upload = accumulator.open_upload(PEER, length_bytes=len(content), sha256=digest)
    if how == "truncated":
        upload.append(0, content[:-4])
    elif how == "extended":
        with pytest.raises(UploadError):
            upload.append(0, content + bytes(4))
    elif how == "altered":
        upload.append(0, flip(content))
    else:
        upload.append(0, content)
        accumulator.fold(upload, committed.append)
    with pytest.raises(UploadError):
        accumulator.fold(upload, committed.append)
    expected = np.arange(words) if how == "twice" else np.zeros(words)
    np.testing.assert_array_equal(accumulator.committed(), expected)
    assert committed == ([1] if how == "twice" else [])
    accumulator.close()


@pytest.mark.parametrize("step", ["advertise_keys", "share_keys", "check_consistency", "unmask"])
def test_a_late_message_changes_nothing(tmp_path, step):
    """Attack 12: whoever answers after its step was closed is not heard, and nobody suffers."""
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    closing: dict[str, Any] = {"advertise_keys": attempt.server}
    told: Any = attempt.advertise()
    for name, act in (
        ("share_keys", attempt.share),
        ("upload", attempt.upload),
        ("check_consistency", attempt.agree),
        ("unmask", attempt.unmask),
    ):
        closing[name] = attempt.server
        told = act(told)
    late = federation[PEER].last(step)
    with pytest.raises(UnexpectedMessageError) as caught:
        closing[step].receive(late)
    assert caught.value.check is Check.UNEXPECTED_MESSAGE
    np.testing.assert_array_equal(told, federation.expected(federation.names))
    federation.close()


def test_equivocation_towards_peers_needs_the_coordinator_and_ends_at_ctx(tmp_path):
    """Two bundles of one silo, shown to one half each: their ctx differ, so no header verifies."""
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    bundles = attempt.until("share_keys")
    other = signed_bundle(attempt, PEER)
    forked = KeyBundles(
        bundles=tuple(other if b.silo_id == PEER else b for b in bundles[ME].bundles)
    )
    half = ("silo-000", ME)
    for name in federation.names:
        if name != PEER:
            federation[name].tell(forked if name in half else bundles[name])
    ctx = transcript.context(attempt.descriptor.descriptor, forked.bundles)
    assert ctx != attempt.ctx
    # PEER plays along with the first half; those of the other half signed another ctx.
    headers = {name: federation[name].last("share_keys") for name in federation.names
               if name != PEER}  # fmt: skip
    with pytest.raises(VerificationError) as caught:
        attempt.server.receive(headers[ME])
    assert (caught.value.check, caught.value.silo) == (Check.SHARE_SIGNATURE, ME)
    assert attempt.server.receive(headers["silo-002"])
    assert_usable(federation, identity_of(attempt=2))
    federation.close()
