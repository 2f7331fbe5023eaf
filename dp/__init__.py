"""The privacy core: constrain, noise, account, and remember what was spent.

Order of use in one silo: ``PrivacySpec`` says what is promised and ``dp.accounting.charge`` what it
costs. ``Ledger.reserve_training`` charges a local training and returns the ``TrainingReceipt`` that
its noisy steps are taken from (``dp.steps.sgd``). ``Ledger.reserve`` charges a release and returns
a ``Receipt``, against which ``NoiseShare`` turns a delta or a ``UnitSum`` into ring elements. The
coordinator decodes the sum with ``Grid.decode`` and ``MetricsBlock.decode``.

Arrays and bytes in, arrays and bytes out; only the ledger touches a disk, and only
``dp.steps.grads`` imports a learning framework.
"""

from dp.accounting.charge import Charge
from dp.config import Mode, PrivacySpec
from dp.errors import PrivacyError
from dp.ledger.ledger import Identity, Ledger, LedgerEntry
from dp.ledger.receipt import Receipt, TrainingReceipt
from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import NoiseShare
from dp.noise.source import NoiseSource
from dp.noise.unit_sum import UnitSum
from dp.steps.units import UnitId

__all__ = [
    "Charge",
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
    "TrainingReceipt",
    "UnitId",
    "UnitSum",
]
