"""The federation's terms: what no roster and no run may pass, whoever is the admin.

Silos decide for themselves by their own policies; these terms are what the founding members agreed
on once, in the audit log from the first day, so that an admin's slip is refused early.

Invariants: a roster has at least ``min_silos`` silos and c of at least ``colluding``; no plan lets
fewer than ``min_silos`` silos make a sum; where the terms have an ``epsilon_cap``, no plan states a
larger one, nor a larger ``delta``, nor does without privacy.

Covered: rosters, plans, names. Not covered: what was spent; silos' ledgers count that.
"""

from __future__ import annotations

from typing import Final

from dp.config import Mode
from federation.membership.invite import FEDERATION_NAME
from federation.plan.plan import Plan
from secagg.parameters import MAX_SILOS, MIN_SILOS
from secagg.roster import Roster
from server.errors import FederationTermsError, NoFederationError, TermValueError
from server.pki.authority import OPERATOR_DOMAIN
from server.store import Store
from server.store.federation import FederationRow

__all__ = [
    "RESERVED_NAME",
    "checked_terms",
    "described",
    "require_federation",
    "require_plan_within",
    "require_roster_within",
]

RESERVED_NAME: Final = OPERATOR_DOMAIN
"""The trust domain of admins and viewers, so no federation's."""


def checked_terms(row: FederationRow) -> FederationRow:
    """Refuse terms that make no sense.

    Raises:
        TermValueError: The text names the value.
    """
    if FEDERATION_NAME.fullmatch(row.name) is None or row.name == RESERVED_NAME:
        raise TermValueError(
            "a federation's name has lower-case letters, digits, dots and dashes, at most 63, and "
            f"is not {RESERVED_NAME!r}"
        )
    if not MIN_SILOS <= row.min_silos <= MAX_SILOS:
        raise TermValueError(
            f"min_silos is from {MIN_SILOS} to {MAX_SILOS}: a sum of two hides nobody"
        )
    if not 1 <= row.colluding < row.min_silos:
        raise TermValueError("colluding is at least 1 and less than min_silos")
    if row.epsilon_cap is not None and not 0 < row.epsilon_cap <= 1e18:
        raise TermValueError(
            f"epsilon_cap is a number above 0 and at most 1e18, not {row.epsilon_cap:g}; without "
            "one, plans decide"
        )
    if not 0 < row.delta < 1:
        raise TermValueError(f"delta is between 0 and 1, not {row.delta:g}")
    return row


def described(row: FederationRow) -> dict[str, str | int]:
    """The terms as the audit log has them, without floating-point numbers."""
    return {
        "federation": row.name,
        "min_silos": row.min_silos,
        "colluding": row.colluding,
        "epsilon_cap": "none" if row.epsilon_cap is None else repr(row.epsilon_cap),
        "delta": repr(row.delta),
    }


def require_federation(store: Store, asked: str = "") -> FederationRow:
    """Return the federation, which must be the one asked for; empty stands for the only one.

    Raises:
        NoFederationError: There is none, or it has another name.
    """
    row = store.federation.current()
    if row is None:
        raise NoFederationError("no federation was created yet: chorale federation create NAME")
    if asked not in {"", row.name}:
        raise NoFederationError(
            f"this coordinator's federation is {row.name!r}, not {asked[:63]!r}"
        )
    return row


def require_roster_within(row: FederationRow, roster: Roster) -> None:
    """Refuse a roster that passes the terms.

    Raises:
        FederationTermsError: The text says which term.
    """
    if len(roster.entries) < row.min_silos:
        raise FederationTermsError(
            f"the roster has {len(roster.entries)} silos, the federation agreed on at least "
            f"{row.min_silos}"
        )
    if roster.colluding < row.colluding:
        raise FederationTermsError(
            f"the roster withstands c = {roster.colluding} colluding silos, the federation agreed "
            f"on {row.colluding}"
        )


def require_plan_within(row: FederationRow, plan: Plan) -> None:
    """Refuse a plan that passes the terms.

    Raises:
        FederationTermsError: The text says which term.
    """
    n_min = plan.secure_aggregation.n_min
    if n_min < row.min_silos:
        raise FederationTermsError(
            f"secure_aggregation.n_min: the plan lets {n_min} silos make a sum, the federation "
            f"agreed on at least {row.min_silos}"
        )
    if row.epsilon_cap is not None and plan.privacy.mode == Mode.NONE.value:
        raise FederationTermsError(
            f"privacy.mode: the federation agreed on epsilon of at most {row.epsilon_cap:g}, and "
            "mode 'none' promises none"
        )
    if row.epsilon_cap is not None and plan.privacy.epsilon_cap > row.epsilon_cap:
        raise FederationTermsError(
            f"privacy.epsilon_cap: the plan states {plan.privacy.epsilon_cap:g}, the federation "
            f"agreed on at most {row.epsilon_cap:g}"
        )
    if row.epsilon_cap is not None and plan.privacy.delta > row.delta:
        raise FederationTermsError(
            f"privacy.delta: the plan states {plan.privacy.delta:g}, the federation agreed on at "
            f"most {row.delta:g}"
        )
