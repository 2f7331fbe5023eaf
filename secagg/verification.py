"""The checks that client and coordinator make alike.

The coordinator makes them so that one silo's bad message is refused by name instead of stopping
everybody; a silo makes them again because the coordinator may lie.
"""

import hmac
from collections.abc import Collection, Iterable

from secagg import bounds, suite
from secagg.descriptor import OTHER_FAMILY, Descriptor, MetricsLayout
from secagg.errors import Check, VerificationError
from secagg.messages import KeyBundle, MaskedInputHeader, ShareBoxHeader
from secagg.roster import Roster
from secagg.transcript import Members


def equal(left: bytes, right: bytes) -> bool:
    """Compare without leaking where the difference is."""
    return hmac.compare_digest(left, right)


def check_ordered_subset(
    listed: Iterable[str], whole: Collection[str], order: Check, subset: Check
) -> tuple[str, ...]:
    """Check that silo ids come in ascending order without repeats, and all belong to a set.

    Raises:
        VerificationError: The given check for order or for membership.
    """
    names = tuple(listed)
    if not bounds.is_strictly_sorted(names):
        raise VerificationError(order, "silo ids are not in ascending order without repeats")
    for name in names:
        if name not in whole:
            raise VerificationError(subset, "a silo that does not belong here", silo=name)
    return names


def check_signature(
    roster: Roster, silo_id: str, signature: bytes, signed_bytes: bytes, check: Check
) -> None:
    """Check a silo's signature under its roster key.

    Raises:
        VerificationError: The given check.
    """
    entry = roster.entry(silo_id)
    if entry is None or not suite.verify(entry.verification_key, signature, signed_bytes):
        raise VerificationError(check, "the signature is not this silo's", silo=silo_id)


def check_bundle(
    roster: Roster, descriptor_sha256: bytes, bundle: KeyBundle, seen: set[bytes]
) -> None:
    """Check a bundle's signature, that its keys are new, and that none has low order.

    It must be signed for the descriptor of this digest, and the roster is verified. `seen` has the
    keys of the bundles before it; this bundle's are added once it is accepted.

    Raises:
        VerificationError: bundle_signature, key_distinct or low_order_key.
    """
    check_signature(
        roster,
        bundle.silo_id,
        bundle.signature,
        bundle.signed_bytes(descriptor_sha256),
        Check.BUNDLE_SIGNATURE,
    )
    points = {suite.same_point(key) for key in (bundle.cipher_key, bundle.mask_key)}
    if len(points) != 2 or points & seen:
        raise VerificationError(Check.KEY_DISTINCT, "a key occurs twice", silo=bundle.silo_id)
    if any(suite.is_low_order(key) for key in (bundle.cipher_key, bundle.mask_key)):
        raise VerificationError(Check.LOW_ORDER_KEY, "a key has low order", silo=bundle.silo_id)
    seen.update(points)


def check_families(metrics: MetricsLayout, bundles: Collection[KeyBundle], least: int) -> None:
    """Check that no figure of the metrics block is about fewer silos than a sum may be about.

    A family with coordinates must be declared by enough silos of U1, max(t, n_min). So must
    ``other``: each silo counted for it declares a family that has no coordinates of its own. The
    signatures of the bundles, those of U1, were checked.

    Raises:
        VerificationError: metrics_families.
    """
    shown = set(metrics.families())
    own = shown - {OTHER_FAMILY}
    for family in sorted(shown):
        if family == OTHER_FAMILY:
            silos = sum(1 for bundle in bundles if set(bundle.families) - own)
        else:
            silos = sum(1 for bundle in bundles if family in bundle.families)
        if silos < least:
            raise VerificationError(
                Check.METRICS_FAMILIES,
                f"family {family!r} has coordinates and {silos} silos where {least} are needed",
            )


def check_share_header(
    roster: Roster, ctx: bytes, header: ShareBoxHeader, members: Iterable[str]
) -> None:
    """Check an R1 header's signature and that it has one box for each other silo of U1.

    Raises:
        VerificationError: share_signature or share_recipients.
    """
    check_signature(
        roster, header.sender, header.signature, header.signed_bytes(ctx), Check.SHARE_SIGNATURE
    )
    expected = tuple(sorted(member for member in members if member != header.sender))
    if tuple(box.recipient for box in header.boxes) != expected:
        raise VerificationError(
            Check.SHARE_RECIPIENTS, "not one box for each other silo", silo=header.sender
        )


def check_upload_header(
    roster: Roster,
    descriptor: Descriptor,
    members: Members,
    header: MaskedInputHeader,
) -> None:
    """Check an upload header's signature, which shows agreement on U2, and its exact length.

    Raises:
        VerificationError: upload_signature or masked_length.
    """
    check_signature(
        roster,
        header.silo_id,
        header.signature,
        header.signed_bytes(members.ctx, members.sha256),
        Check.UPLOAD_SIGNATURE,
    )
    if header.length_bytes != descriptor.length_bytes:
        raise VerificationError(
            Check.MASKED_LENGTH,
            f"{header.length_bytes} bytes where {descriptor.length_bytes} are due",
            silo=header.silo_id,
        )
