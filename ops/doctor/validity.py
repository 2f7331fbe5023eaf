"""What a doctor says about a certificate's validity, on both sides alike.

Covered: expired, not valid yet, about to end. Not covered: trust and names.
"""

from __future__ import annotations

import datetime as dt

from cryptography import x509

from ops.doctor.checkup import Verdict, failed, ok, warning

__all__ = ["judge_validity"]


def judge_validity(
    what: str, certificate: x509.Certificate, *, now: dt.datetime, soon: dt.timedelta, renew: str
) -> Verdict:
    """Compare a certificate with a clock.

    Args:
        what: Its name in the text, for example ``the admin certificate``.
        certificate: The certificate.
        now: This machine's clock.
        soon: How long before the end a warning begins.
        renew: How a new one is had.

    Returns:
        The verdict.
    """
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return failed(
            f"{what} is valid only from {_shown(begins)}; this machine's clock says {_shown(now)}",
            "set this machine's clock (timedatectl set-ntp true); if it is right, " + renew,
        )
    if now >= ends:
        return failed(
            f"{what} ended at {_shown(ends)}; this machine's clock says {_shown(now)}", renew
        )
    if now >= ends - soon:
        return warning(f"{what} ends soon, at {_shown(ends)}", renew)
    return ok(f"{what} is valid until {_shown(ends)}")


def _shown(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
