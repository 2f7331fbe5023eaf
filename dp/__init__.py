"""The privacy core: constrain, noise, account, and remember what was spent.

Order of use in one silo: ``PrivacySpec`` says what is promised, ``Ledger.reserve`` charges it and
returns a ``Receipt``, ``NoiseShare`` or ``encode_round`` turns a delta into ring elements against
that receipt. The coordinator decodes the sum with ``Grid.decode`` and ``MetricsBlock.decode``.

Arrays and bytes in, arrays and bytes out; only the ledger touches a disk.
"""

from dp.config import Mode, PrivacySpec
from dp.errors import PrivacyError
from dp.grid import Grid
from dp.ledger import Identity, Ledger, LedgerEntry
from dp.metrics_block import MetricsBlock
from dp.receipt import Receipt
from dp.share import NoiseShare, encode_round
from dp.source import NoiseSource

__all__ = [
    "Grid",
    "Identity",
    "Ledger",
    "LedgerEntry",
    "MetricsBlock",
    "Mode",
    "NoiseShare",
    "NoiseSource",
    "PrivacyError",
    "PrivacySpec",
    "Receipt",
    "encode_round",
]
