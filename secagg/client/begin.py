"""The first step of a silo, in the suite that the descriptor names."""

from secagg.client import advertise_keys, hybrid_advertise_keys
from secagg.client.advertise_keys import AdvertiseKeys
from secagg.client.setup import ClientSetup, check_setup
from secagg.messages import KeyBundle


def begin(setup: ClientSetup) -> tuple[AdvertiseKeys, KeyBundle]:
    """Check the setup, make the keys of this aggregation and give the message of R0.

    Raises:
        VerificationError: The descriptor is refused; no key was made.
    """
    membership = check_setup(setup)
    if membership.descriptor.is_hybrid:
        return hybrid_advertise_keys.advertise(setup, membership)
    return advertise_keys.advertise(setup, membership)
