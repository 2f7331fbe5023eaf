"""What the tests of refused messages have in common: one silo, one peer, and altered messages."""

from dataclasses import replace

import pytest

from secagg import client, suite
from secagg.errors import (
    UnexpectedMessageError,
    VerificationError,
)
from secagg.messages import (
    KeyBundle,
    KeyBundles,
    MaskedInputHeader,
)
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.simulation.secagg_cohort import Cohort

ME = "silo-001"
PEER = "silo-003"


def assert_refused(state, message, check, silo=None):
    """The state refuses the message at the named check, forgets its secrets, and is over."""
    with pytest.raises(VerificationError) as caught:
        state.handle(message)
    assert caught.value.check is check
    if silo is not None:
        assert caught.value.silo == silo
    assert repr(state._vault) == "Vault(0 secrets)"
    assert isinstance(state.aborted, client.Aborted)
    assert state.aborted.check is check
    for ended in (state, state.aborted):
        with pytest.raises(UnexpectedMessageError):
            ended.handle(message)
    state.aborted.wipe()


def signed_bundle(cohort, name, **changes) -> KeyBundle:
    """A bundle altered and then signed by the silo's own key: a malicious silo."""
    state, bundle = client.begin(cohort.setup(name))
    state.wipe()
    altered = replace(bundle, **changes)
    digest = cohort.descriptor.descriptor.sha256
    return replace(altered, signature=suite.sign(signing_key(name), altered.signed_bytes(digest)))


def with_bundle(bundles: KeyBundles, name: str, bundle: KeyBundle) -> KeyBundles:
    return KeyBundles(
        bundles=tuple(bundle if item.silo_id == name else item for item in bundles.bundles)
    )


def bundle_of(bundles: KeyBundles, name: str) -> KeyBundle:
    return next(bundle for bundle in bundles.bundles if bundle.silo_id == name)


def flip_top_bit(key: bytes) -> bytes:
    return bytes([*key[:31], key[31] ^ 0x80])


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1, *data[1:]])


def masked_input_state(n=5, suite=1):
    cohort = Cohort(n, suite=suite)
    delivery = cohort.until("masked_input")[ME]
    state, _ = cohort.states[ME].handle(delivery)
    return cohort, state


def resigned_upload(cohort, header: MaskedInputHeader, members, **changes):
    altered = replace(header, **changes)
    signed_bytes = altered.signed_bytes(members.ctx, members.sha256)
    return replace(altered, signature=suite.sign(signing_key(altered.silo_id), signed_bytes))
