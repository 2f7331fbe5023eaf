"""The silo's side: one class per state.

::

    begin ─▶ AdvertiseKeys ─KeyBundles─▶ ShareKeys ─BoxDelivery─▶ MaskedInput ─mask─▶
             ConsistencyCheck ─Survivors─▶ Unmask ─ConsistencySignatures─▶ Finished

In suite v2 the first two are HybridAdvertiseKeys and HybridShareKeys, which takes a LeafDelivery.

Every state may become Aborted. ``handle`` returns the next state and the message to send.
"""

from secagg.client.advertise_keys import AdvertiseKeys
from secagg.client.begin import begin
from secagg.client.consistency_check import ConsistencyCheck
from secagg.client.masked_input import MaskedInput
from secagg.client.setup import ClientSetup, LedgerHead
from secagg.client.share_keys import ShareKeys
from secagg.client.state import Aborted, Finished, RejectedSender
from secagg.client.unmask import Unmask

__all__ = [
    "Aborted",
    "AdvertiseKeys",
    "ClientSetup",
    "ConsistencyCheck",
    "Finished",
    "LedgerHead",
    "MaskedInput",
    "RejectedSender",
    "ShareKeys",
    "Unmask",
    "begin",
]
