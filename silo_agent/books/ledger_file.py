"""Opening this silo's privacy ledger, against what the silo remembers of it.

Invariants: a ledger is new only where the silo is; it holds the highest head this silo has seen.

Covered: a lost ledger, one restored from an older copy, damage, a second process. Not covered here:
both the ledger and ``state.json`` restored from the same old copy, which the coordinator's echo
(``silo_agent/books/ledger_echo.py``) and the peers (``silo_agent/books/peer_heads.py``) notice.
"""

from __future__ import annotations

from typing import Final

from dp.errors import PrivacyError
from dp.ledger.ledger import Ledger
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError
from silo_agent.policy.document import Policy

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
    ledger = Ledger.open(
        path,
        delta=policy.privacy.delta,
        caps=policy.privacy.caps(),
        max_debits_per_day=policy.limits.max_attempts_per_day,
    )
    remembered = store.ledger_head()
    if remembered is not None:
        try:
            ledger.require_contains(*remembered)
        except PrivacyError:
            ledger.close()
            raise
    return ledger
