"""How a malicious silo alters what it sends."""

from dataclasses import replace
from typing import Any

from secagg import suite
from secagg.messages import UnmaskingShares
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.session_federation import Attempt

WRONG = bytes(33)


def resigned(attempt: Attempt | Cohort, shares: UnmaskingShares, **changes: Any) -> UnmaskingShares:
    """An R4 message altered and signed by its own silo."""
    altered = replace(shares, **changes)
    signed = altered.signed_bytes(attempt.ctx, attempt.server._survivors_sha256)
    return replace(altered, signature=suite.sign(signing_key(altered.silo_id), signed))


def spoiled(shares: tuple[Any, ...], owners: set[str] | None = None) -> tuple[Any, ...]:
    return tuple(
        replace(share, share=WRONG) if owners is None or share.owner in owners else share
        for share in shares
    )
