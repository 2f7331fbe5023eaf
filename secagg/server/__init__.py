"""The coordinator's side: one class per state.

::

    open ─▶ CollectBundles ─▶ CollectShares ─▶ CollectMaskedInputs ─▶ CollectConsistency ─▶
            CollectUnmasking ─▶ Unmasking

``receive`` takes a silo's message, ``pending`` and ``ready`` tell who is waited for and whether it
can go on, ``close`` returns the next state and what to broadcast.
"""

from secagg.server.collect_bundles import CollectBundles
from secagg.server.collect_bundles import (
    open_aggregation as open,  # noqa: A004 - the protocol opens; callers write server.open
)
from secagg.server.collect_consistency import CollectConsistency
from secagg.server.collect_masked_inputs import CollectMaskedInputs
from secagg.server.collect_shares import CollectShares
from secagg.server.collect_unmasking import CollectUnmasking, RejectedShare
from secagg.server.unmasking import Unmasking

__all__ = [
    "CollectBundles",
    "CollectConsistency",
    "CollectMaskedInputs",
    "CollectShares",
    "CollectUnmasking",
    "RejectedShare",
    "Unmasking",
    "open",
]
