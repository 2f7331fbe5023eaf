"""The checks that client and coordinator make alike.

The coordinator makes them so that one silo's bad message is refused by name instead of stopping
everybody; a silo makes them again because the coordinator may lie.
"""

import hmac
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from secagg import bounds, hybrid, suite
from secagg.descriptor import OTHER_FAMILY, Descriptor
from secagg.errors import Check, VerificationError
from secagg.messages import KeyBundle, MaskedInputHeader, ShareBoxHeader, ShareRoot
from secagg.parameters import Parameters
from secagg.roster import Roster
from secagg.transcript import Members

# In every sum, beyond the silos that may collude.
LEAST_HONEST: Final = 2


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


def check_form(*, is_hybrid: bool, expected: bool, silo_id: str) -> None:
    """Check that a message has the form of the aggregation's suite.

    Raises:
        VerificationError: suite.
    """
    if is_hybrid != expected:
        raise VerificationError(Check.SUITE, "a message of another suite", silo=silo_id)


def check_bundle(
    roster: Roster,
    descriptor_sha256: bytes,
    bundle: KeyBundle,
    seen: set[bytes],
    *,
    is_hybrid: bool,
) -> None:
    """Check a bundle's form and signature, that its keys are new, and that each is fit for use.

    It must be signed for the descriptor of this digest and have the form of its suite; the roster
    is verified. `seen` has the keys of the bundles before it; this bundle's are added once it is
    accepted.

    Raises:
        VerificationError: suite, bundle_signature, key_distinct, low_order_key or kem_key.
    """
    kem = bundle.kem_keys
    check_form(is_hybrid=kem is not None, expected=is_hybrid, silo_id=bundle.silo_id)
    check_signature(
        roster,
        bundle.silo_id,
        bundle.signature,
        bundle.signed_bytes(descriptor_sha256),
        Check.BUNDLE_SIGNATURE,
    )
    encapsulation_keys = () if kem is None else (kem.cipher_key, kem.mask_key)
    points = [suite.same_point(key) for key in (bundle.cipher_key, bundle.mask_key)]
    keys = {*points, *encapsulation_keys}
    if len(keys) != len(points) + len(encapsulation_keys) or keys & seen:
        raise VerificationError(Check.KEY_DISTINCT, "a key occurs twice", silo=bundle.silo_id)
    if any(suite.is_low_order(key) for key in (bundle.cipher_key, bundle.mask_key)):
        raise VerificationError(Check.LOW_ORDER_KEY, "a key has low order", silo=bundle.silo_id)
    if not all(hybrid.is_kem_key(key) for key in encapsulation_keys):
        raise VerificationError(Check.KEM_KEY, "a KEM key is out of range", silo=bundle.silo_id)
    seen.update(keys)


def check_families(descriptor: Descriptor, bundles: Collection[KeyBundle], least: int) -> None:
    """Check that no figure of the metrics block is about fewer silos than a sum may be about.

    A family with coordinates must be declared by enough silos of U1, max(t, n_min); in suite v2 of
    U3 too. So must ``other``: each silo counted for it declares a family that has no coordinates of
    its own, in suite v2 one of the plan's: nobody has episodes of another to put there. The
    signatures of the bundles, those of U1 or U3, were checked.

    Raises:
        VerificationError: metrics_families.
    """
    shown = set(descriptor.metrics.families())
    own = shown - {OTHER_FAMILY}
    for family in sorted(shown):
        if family == OTHER_FAMILY:
            silos = sum(1 for bundle in bundles if _of_plan(descriptor, bundle) - own)
        else:
            silos = sum(1 for bundle in bundles if family in bundle.families)
        if silos < least:
            raise VerificationError(
                Check.METRICS_FAMILIES,
                f"family {family!r} has coordinates and {silos} silos where {least} are needed",
            )


def _of_plan(descriptor: Descriptor, bundle: KeyBundle) -> set[str]:
    """The families of a bundle that its silo may have episodes of; suite v1 cannot tell."""
    declared = set(bundle.families)
    return declared.intersection(descriptor.families) if descriptor.is_hybrid else declared


def check_contributors(
    descriptor: Descriptor,
    declared: Mapping[str, Collection[str]],
    silo_ids: Iterable[str],
    parameters: Parameters,
    *,
    after_upload: bool,
) -> None:
    """Check that enough of these silos declared a family of the plan.

    `declared` has the families of each silo's signed bundle. Silos that declare none of the plan's
    may add zeros and hide nobody. Over U1, and over U3 with `after_upload`, when two must remain
    beyond those that may collude. That a declarer adds more than zeros is not shown.

    Raises:
        VerificationError: contributors.
    """
    plan = set(descriptor.families)
    count = sum(1 for silo_id in silo_ids if not plan.isdisjoint(declared[silo_id]))
    least = parameters.least_survivors
    if count < least or (after_upload and count - parameters.c < LEAST_HONEST):
        raise VerificationError(
            Check.CONTRIBUTORS,
            f"{count} silos declare a family of the plan where {least} are needed",
        )


def check_share_root(roster: Roster, ctx: bytes, root: ShareRoot, members: Collection[str]) -> None:
    """Check a signed root of R1, and that it is over one leaf for each other silo of U1.

    Raises:
        VerificationError: share_signature or leaf_count.
    """
    check_signature(
        roster, root.sender, root.signature, root.signed_bytes(ctx), Check.SHARE_SIGNATURE
    )
    if root.leaf_count != len(members) - 1:
        raise VerificationError(
            Check.LEAF_COUNT, "not one leaf for each other silo", silo=root.sender
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
    """Check an upload header.

    Its form; its signature, which shows agreement on U2; its exact length; and in suite v2 that it
    rejects only members that could have dealt it a pair secret, the lower ids.

    Raises:
        VerificationError: suite, upload_signature, masked_length or rejected_pair.
    """
    check_form(
        is_hybrid=header.debit is not None, expected=descriptor.is_hybrid, silo_id=header.silo_id
    )
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
    if any(one > header.silo_id or one not in members.silo_ids for one in header.rejected):
        raise VerificationError(
            Check.REJECTED_PAIR, "it rejects a silo that deals it nothing", silo=header.silo_id
        )


def check_debit(bundle: KeyBundle, header: MaskedInputHeader) -> None:
    """Check that an upload's charge is newer than the ledger that its silo showed in R0.

    Raises:
        VerificationError: debit_head.
    """
    if header.debit is None or header.debit.seq <= bundle.ledger_seq:
        raise VerificationError(
            Check.DEBIT_HEAD, "the charge is older than the ledger of R0", silo=header.silo_id
        )


def rejected_pairs(headers: Iterable[MaskedInputHeader]) -> tuple[tuple[str, str], ...]:
    """Return (accused, accuser) of every pair of these uploads that only one of them masked.

    The mask of such a pair would stay in the sum.
    """
    by_silo = {header.silo_id: header for header in headers}
    return tuple(
        (dealer, header.silo_id)
        for header in by_silo.values()
        for dealer in header.rejected
        if dealer in by_silo
    )


def check_survivors(
    descriptor: Descriptor,
    bundles: Mapping[str, KeyBundle],
    headers: Collection[MaskedInputHeader],
    parameters: Parameters,
) -> None:
    """Check what suite v2 asks of survivors; each header passed `check_upload_header`.

    `bundles` are those of U1, by silo. Every charge is new; no pair has a mask on one side alone;
    enough of U3 declared a family of the plan, and each family with figures.

    Raises:
        VerificationError: debit_head, rejected_pair, contributors or metrics_families.
    """
    for header in headers:
        check_debit(bundles[header.silo_id], header)
    for dealer, accuser in rejected_pairs(headers):
        raise VerificationError(
            Check.REJECTED_PAIR, f"{accuser} masked without this silo's secret", silo=dealer
        )
    alive = [header.silo_id for header in headers]
    declared = {silo_id: bundles[silo_id].families for silo_id in alive}
    check_contributors(descriptor, declared, alive, parameters, after_upload=True)
    check_families(descriptor, [bundles[silo_id] for silo_id in alive], parameters.least_survivors)
