"""Opening this silo's privacy ledger, against what the silo remembers of it.

Invariants: a ledger is new only where the silo is; it holds the highest head this silo has seen.

Covered: a lost ledger, one restored from an older copy. Not covered: both the ledger and
``state.json`` restored from the same old copy; peers see the heads but do not compare them yet.
"""

from __future__ import annotations

from typing import Final

from dp.errors import PrivacyError
from dp.ledger import Ledger
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError
from silo_agent.local_store import LocalStore
from silo_agent.policy_document import Policy

__all__ = ["LEDGER_FILE", "open_ledger"]

LEDGER_FILE: Final = "privacy.ledger"


def open_ledger(config: SiloConfig, policy: Policy, store: LocalStore) -> Ledger:
    """The ledger of this silo, which may be new only if the silo is.

    Raises:
        ConfigError: it is gone although this silo took part in runs.
        PrivacyError: it is damaged, held by another process, or older than this silo remembers.
    """
    path = config.data_dir / LEDGER_FILE
    if store.chain_heads() and not path.exists():
        raise ConfigError(
            f"{path} is missing, but this silo took part in runs: restore it from a backup; a new "
            "one would forget what was spent and which survivors were signed"
        )
    ledger = Ledger.open(path, delta=policy.privacy.delta, epsilon_cap=policy.privacy.epsilon_cap)
    remembered = store.ledger_head()
    if remembered is not None:
        try:
            ledger.check_head_not_behind(*remembered)
        except PrivacyError:
            ledger.close()
            raise
    return ledger
