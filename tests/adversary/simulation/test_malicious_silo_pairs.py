"""Attack 22: a dealer whose pair secret is bad, and a silo that says so of a good one.

The lower id of a pair deals s_ij, which follows from its mask seed; with X25519 it makes the mask
of the pair. A failure: a sum that is not exactly the survivors', an honest silo named, a pair of
survivors of which one masked without the other, or a pair secret released that should stay. Not a
failure: an attempt that ends because more than c silos accuse or are accused.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import client, hybrid, transcript
from secagg.errors import Check, VerificationError
from secagg.messages import MaskedInputHeader, PairSecret, Survivors, UnmaskingShares
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import assert_refused, resigned_upload
from tests.kit.simulation.spoiled import resigned

# Of five silos, of which one may drop: DEALER deals to RECIPIENT.
DEALER, RECIPIENT, OTHER = "silo-001", "silo-003", "silo-002"
Hooks = Mapping[str, Callable[[], Any]]


def cohort_of(**changes: Any) -> Cohort:
    return Cohort(5, suite=2, **changes)


def played(
    cohort: Cohort,
    *,
    sharing: Hooks | None = None,
    opening: Hooks | None = None,
    lost: tuple[str, ...] = (),
) -> Survivors:
    """Everything up to the survivors; a hook surrounds one silo's step."""
    bundles = cohort.advertise()
    for name in cohort.names:
        with (sharing or {}).get(name, contextmanager(lambda: iter([None])))():
            cohort.states[name], message = cohort.states[name].handle(bundles)
        cohort.server.receive(message)
    deliveries = cohort.deliver()
    for name in cohort.names:
        with (opening or {}).get(name, contextmanager(lambda: iter([None])))():
            cohort.states[name], _ = cohort.states[name].handle(deliveries[name])
        header = cohort.masked(name)
        if name not in lost:
            cohort.take(header)
    return cohort.declare()


def summed(
    cohort: Cohort,
    survivors: Survivors,
    *,
    lying: Mapping[str, Callable[[UnmaskingShares], UnmaskingShares]] | None = None,
) -> Any:
    """R3 and R4; what was recovered, after it was found to give exactly the survivors' sum."""
    signatures = cohort.agree(survivors)
    for name in sorted(cohort.server.pending):
        cohort.states[name], shares = cohort.states[name].handle(signatures)
        cohort.sent[name] = shares
        said = (lying or {}).get(name, lambda unchanged: unchanged)(shares)
        cohort.server.receive(resigned(cohort, said))
    unmasking = cohort.server.finish()
    unmasking.apply(cohort.accumulator)
    alive = [header.silo_id for header in survivors.headers]
    np.testing.assert_array_equal(cohort.accumulator.view("<i4"), cohort.expected(alive))
    return unmasking


# What a malicious silo does in a step -------------------------------------------------------------


@contextmanager
def patched(module: Any, name: str, made: Callable[..., Any]) -> Any:
    """Replace a function while one silo acts; the others and the coordinator have the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, made)
        yield


def dealing_another_secret(recipient: str) -> Any:
    """The dealer commits to, seals and masks with a secret that does not follow from its seed."""
    real = hybrid.pair_secret

    def other(seed: Any, ctx: bytes, low: str, high: str) -> bytes:
        if high != recipient:
            return real(seed, ctx, low, high)
        return hashlib.sha256(b"another" + ctx).digest()

    return lambda: patched(hybrid, "pair_secret", other)


def committing_to_another(recipient: str) -> Any:
    """The dealer signs the hash of another secret than the one it seals and masks with."""
    real = transcript.pair_secret_sha256

    def other(ctx: bytes, low: str, high: str, secret: Any) -> bytes:
        return real(ctx, low, high, bytes(32) if high == recipient else secret)

    return lambda: patched(transcript, "pair_secret_sha256", other)


def not_believing(dealer: str) -> Any:
    """The recipient treats a good secret as a bad one."""
    real = transcript.pair_secret_sha256

    def other(ctx: bytes, low: str, high: str, secret: Any) -> bytes:
        return real(ctx, low, high, bytes(32) if low == dealer else secret)

    return lambda: patched(transcript, "pair_secret_sha256", other)


def encapsulating_badly(recipient: str, *uses: str, of: Cohort | None = None) -> dict[str, Any]:
    """A setup whose ciphertexts for some keys of a peer carry another secret than it uses."""
    state, bundle = client.begin((of or cohort_of()).setup(recipient))
    state.wipe()
    targets = {getattr(bundle.kem_keys, use) for use in uses}

    def encapsulate(public_key: bytes) -> tuple[bytes, bytes]:
        shared, ciphertext = hybrid.encapsulate(public_key)
        return (bytes(32), ciphertext) if public_key in targets else (shared, ciphertext)

    return {"encapsulate": encapsulate}


def releasing(secret: Callable[[bytes], bytes]) -> Callable[[UnmaskingShares], UnmaskingShares]:
    """Alter every pair secret that a silo releases."""

    def said(shares: UnmaskingShares) -> UnmaskingShares:
        pairs = tuple(replace(p, secret=secret(p.secret)) for p in shares.pair_secrets or ())
        return replace(shares, pair_secrets=pairs)

    return said


WRONG = releasing(lambda _: bytes(32))


def alive_of(survivors: Survivors) -> set[str]:
    return {header.silo_id for header in survivors.headers}


def header_of(survivors: Survivors, name: str) -> MaskedInputHeader:
    return next(header for header in survivors.headers if header.silo_id == name)


# A secret that does not open ----------------------------------------------------------------------


def unopenable() -> tuple[Cohort, Hooks]:
    return cohort_of(setups={DEALER: encapsulating_badly(RECIPIENT, "mask_key")}), {}


def mismatching() -> tuple[Cohort, Hooks]:
    return cohort_of(), {DEALER: committing_to_another(RECIPIENT)}


@pytest.mark.parametrize("bad", [unopenable, mismatching])
def test_a22a_a_bad_pair_secret_costs_its_dealer_its_place(bad):
    """Attack 22: the recipient masks without the pair and says so; the dealer is left out.

    ML-KEM gives another secret for a bad ciphertext, so it shows at the seal.
    """
    cohort, sharing = bad()
    survivors = played(cohort, sharing=sharing)
    assert alive_of(survivors) == set(cohort.names) - {DEALER}
    assert header_of(survivors, RECIPIENT).rejected == (DEALER,)
    unmasking = summed(cohort, survivors)
    assert unmasking.survivors == tuple(sorted(alive_of(survivors)))
    # Nothing of the rejected pair is released: its recipient has no secret of it.
    pairs = {name: cohort.sent[name].pair_secrets for name in cohort.sent}
    assert pairs[RECIPIENT] == ()
    assert {p.silo_id for p in pairs[OTHER]} == {DEALER}


@pytest.mark.parametrize("bad", [unopenable, mismatching])
def test_a22b_a_bad_pair_secret_of_a_silo_that_drops_changes_nothing(bad):
    cohort, sharing = bad()
    survivors = played(cohort, sharing=sharing, lost=(DEALER,))
    assert alive_of(survivors) == set(cohort.names) - {DEALER}
    summed(cohort, survivors)


@pytest.mark.parametrize("bad", [unopenable, mismatching])
def test_a22c_a_bad_pair_secret_for_a_silo_that_drops_changes_nothing(bad):
    """Attack 22: nobody says that it was bad, and the dealer's own mask has to come off.

    The sealed secret is the one that the dealer used in one case and cannot be opened in the other:
    its own release is then all there is, and the recovered key is the proof against it.
    """
    cohort, sharing = bad()
    survivors = played(cohort, sharing=sharing, lost=(RECIPIENT,))
    assert alive_of(survivors) == set(cohort.names) - {RECIPIENT}
    if bad is mismatching:
        # What is sealed and what was released are one secret, and neither is the signed one.
        with pytest.raises(VerificationError) as caught:
            summed(cohort, survivors)
        assert (caught.value.check, caught.value.silo) == (Check.PAIR_SECRET, DEALER)
        return
    assert summed(cohort, survivors).bad_pair_dealers == (DEALER,)


@pytest.mark.parametrize("at", [DEALER, RECIPIENT, OTHER])
def test_a22d_no_survivors_of_which_one_rejected_another_are_signed(at):
    """Attack 22: a coordinator that keeps both would sum a mask that only one of them added."""
    cohort = cohort_of(setups={DEALER: encapsulating_badly(RECIPIENT, "mask_key")})
    _, headers = both_uploaded(cohort)
    assert_refused(cohort.states[at], Survivors(headers=headers), Check.REJECTED_PAIR)


def both_uploaded(cohort: Cohort) -> tuple[Any, tuple[MaskedInputHeader, ...]]:
    deliveries = cohort.share(cohort.advertise())
    headers = []
    for name in cohort.names:
        cohort.states[name], _ = cohort.states[name].handle(deliveries[name])
        headers.append(cohort.masked(name))
    return cohort.server, tuple(headers)


@pytest.mark.parametrize("whole", [False, True])
def test_a22e_a_box_that_does_not_open_costs_its_shares_alone(whole):
    """Attack 22: the sender is named by the silo it concerns; its pair is as good as any."""
    # Of six, so that the others' shares are enough if the dealer is left out.
    uses = ("cipher_key", "mask_key") if whole else ("cipher_key",)

    def six() -> Cohort:
        bad = encapsulating_badly(RECIPIENT, *uses, of=Cohort(6, suite=2))
        return Cohort(6, suite=2, setups={DEALER: bad})

    cohort = six()
    deliveries = cohort.share(cohort.advertise())
    state, _ = cohort.states[RECIPIENT].handle(deliveries[RECIPIENT])
    named = {(r.silo_id, r.check) for r in state.rejected}
    assert (DEALER, Check.BOX_OPEN) in named
    assert ((DEALER, Check.PAIR_SECRET) in named) is whole
    cohort = six()
    survivors = played(cohort)
    assert alive_of(survivors) == set(cohort.names) - ({DEALER} if whole else set())
    summed(cohort, survivors)
    assert all(s.owner != DEALER for s in cohort.sent[RECIPIENT].self_seed_shares)


# A secret that does not follow from the seed -----------------------------------------------------


def test_a22f_the_dealer_drops_and_is_named():
    """Attack 22, low id lost: what follows from its seed is not what it signed; the other's is."""
    cohort = cohort_of()
    sharing = {DEALER: dealing_another_secret(RECIPIENT)}
    unmasking = summed(cohort, played(cohort, sharing=sharing, lost=(DEALER,)))
    assert unmasking.bad_pair_dealers == (DEALER,)


def test_a22g_the_recipient_drops_and_the_sum_is_exact():
    """Attack 22, high id lost: sealed, signed and released are one secret; no seed is asked."""
    cohort = cohort_of()
    sharing = {DEALER: dealing_another_secret(RECIPIENT)}
    survivors = played(cohort, sharing=sharing, lost=(RECIPIENT,))
    assert alive_of(survivors) == set(cohort.names) - {RECIPIENT}
    summed(cohort, survivors)


@pytest.mark.parametrize("lost", [DEALER, RECIPIENT])
def test_a22h_a_wrong_release_is_made_up_for_by_the_recovered_seed(lost):
    """Attack 22, in both orders of ids: who lies in R4 about an honest pair changes nothing."""
    cohort = cohort_of()
    liar = RECIPIENT if lost == DEALER else DEALER
    unmasking = summed(cohort, played(cohort, lost=(lost,)), lying={liar: WRONG})
    assert unmasking.bad_pair_dealers == ()


@pytest.mark.parametrize("lost", [DEALER, RECIPIENT])
def test_a22i_nobody_releases_and_the_seed_is_enough(lost):
    """Attack 22: as after survivors were lost in R4, or say nothing of a pair."""
    cohort = cohort_of()

    def silent(shares: UnmaskingShares) -> UnmaskingShares:
        return replace(shares, pair_secrets=())

    lying = dict.fromkeys(set(cohort.names) - {lost}, silent)
    assert summed(cohort, played(cohort, lost=(lost,)), lying=lying).bad_pair_dealers == ()


def test_a22j_dealer_and_recipient_lie_together_and_there_is_no_sum():
    """Attack 22: two liars, more than c = 1: the dealer is named and nothing wrong is summed."""
    cohort = cohort_of()
    survivors = played(cohort, sharing={DEALER: dealing_another_secret(RECIPIENT)}, lost=(DEALER,))
    with pytest.raises(VerificationError) as caught:
        summed(cohort, survivors, lying={RECIPIENT: WRONG})
    assert (caught.value.check, caught.value.silo) == (Check.PAIR_SECRET, DEALER)


# A false accusation -------------------------------------------------------------------------------


def test_a22k_a_good_secret_called_bad_leaves_out_one_silo_and_the_sum_is_exact():
    """Attack 22: the coordinator cannot tell who lies; the accused goes first."""
    cohort = cohort_of()
    survivors = played(cohort, opening={RECIPIENT: not_believing(DEALER)})
    assert alive_of(survivors) == set(cohort.names) - {DEALER}
    assert summed(cohort, survivors).bad_pair_dealers == ()


def test_a22l_who_accuses_more_than_c_goes_itself():
    """Attack 22: one silo rejects all that deal to it. Leaving it out costs one silo, not three."""
    cohort = cohort_of()
    accuser = cohort.names[-1]
    real = transcript.pair_secret_sha256

    def none(ctx: bytes, low: str, high: str, secret: Any) -> bytes:
        return real(ctx, low, high, bytes(32))

    survivors = played(
        cohort, opening={accuser: lambda: patched(transcript, "pair_secret_sha256", none)}
    )
    assert alive_of(survivors) == set(cohort.names) - {accuser}
    summed(cohort, survivors)


def test_a22m_more_than_c_liars_end_the_attempt():
    """Attack 22: two pairs without a silo in common, c = 1."""
    cohort = cohort_of()
    with pytest.raises(VerificationError) as caught:
        played(
            cohort,
            opening={
                "silo-003": not_believing("silo-001"),
                "silo-004": not_believing("silo-002"),
            },
        )
    assert caught.value.check is Check.REJECTED_PAIR


def test_a22n_an_accusation_within_the_drops_of_a_larger_cohort():
    """Attack 22: c = 3 of ten: three false accusations cost three silos, and the sum is exact."""
    cohort = Cohort(10, 3, suite=2)
    opening = {
        "silo-007": not_believing("silo-000"),
        "silo-008": not_believing("silo-001"),
        "silo-009": not_believing("silo-002"),
    }
    survivors = played(cohort, opening=opening)
    assert alive_of(survivors) == set(cohort.names[3:])
    summed(cohort, survivors)


@pytest.mark.parametrize("rejected", [("stranger",), ("silo-004", "stranger")])
def test_a22o_a_rejection_of_a_silo_outside_the_members_is_refused(rejected):
    """Attack 22: by the coordinator, and by a silo that a lying one shows it to."""
    cohort = cohort_of()
    collect, headers = both_uploaded(cohort)
    liar = next(header for header in headers if header.silo_id == RECIPIENT)
    lying = resigned_upload(cohort, liar, cohort.members, rejected=rejected)
    with pytest.raises(VerificationError) as caught:
        collect.expect(lying)
    assert (caught.value.check, caught.value.silo) == (Check.REJECTED_PAIR, RECIPIENT)
    shown = tuple(lying if header.silo_id == RECIPIENT else header for header in headers)
    assert_refused(cohort.states[OTHER], Survivors(headers=shown), Check.REJECTED_PAIR, RECIPIENT)


# What R4 holds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [DEALER, RECIPIENT])
def test_a22p_secrets_leave_for_pairs_with_a_lost_silo_alone(lost):
    """Attack 22: survivors' pairs stay closed, in what leaves and in what the coordinator takes."""
    cohort = cohort_of()
    survivors = played(cohort, lost=(lost,))
    summed(cohort, survivors)
    for name in alive_of(survivors):
        assert [p.silo_id for p in cohort.sent[name].pair_secrets] == [lost]


@pytest.mark.parametrize("offered", ["a survivor", "itself", "a stranger", "twice"])
def test_a22q_a_release_of_any_other_pair_is_refused(offered):
    cohort = cohort_of()
    survivors = played(cohort, lost=(RECIPIENT,))
    signatures = cohort.agree(survivors)
    cohort.states[DEALER], shares = cohort.states[DEALER].handle(signatures)
    owners = {
        "a survivor": (OTHER, RECIPIENT),
        "itself": (DEALER, RECIPIENT),
        "a stranger": (RECIPIENT, "stranger"),
        "twice": (RECIPIENT, RECIPIENT),
    }[offered]
    pairs = tuple(PairSecret(silo_id=name, secret=bytes(32)) for name in owners)
    forged = resigned(cohort, shares, pair_secrets=pairs)
    with pytest.raises(VerificationError) as caught:
        cohort.server.receive(forged)
    assert caught.value.check is Check.UNMASK_KIND
    assert cohort.server.receive(shares)
