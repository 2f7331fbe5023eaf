"""This silo's privacy ledger: opening it, what an attempt is called in it, and what it must allow.

Ordered invariants:

1. A ledger is new only where the silo is; it holds the highest head that this silo remembers.
2. It contains the head that the coordinator echoes. Beside a round task the coordinator shows the
   newest R0 bundle that this silo signed, which carries the head of that moment; it was durable
   before the bundle left. So a ledger without it was restored from an older copy, also where
   ``state.json``, this silo's own memory of the head, was restored with it. From protocol 3 on it
   shows the newest upload too that was charged later and is in no sum; of those in a sum the peers
   know. An echo is believed only under this silo's own signature: the coordinator cannot make one
   up.
3. No work begins and no key is made that the ledger could not charge, unit kind by unit kind,
   beyond what the site allows in a day, or beyond the attempts and trainings that the run's plan
   states ε for; nor for a step of which this silo signed survivors before; nor with noise after an
   upload in mode ``none``, unless the policy allows that; nor, in mode ``none``, with silos that
   were not in the sum before, unless that is allowed.
4. The charge of an attempt is a function of the plan's privacy part and of the step alone.

Each refusal depends on configurations, ledger and clock, and so on no data.

Covered: a lost ledger, one restored from an older copy, damage, a second process. Not covered: the
charge itself (``dp/ledger/ledger.py``); a coordinator that leaves the echo out: then the peers
notice (``silo_agent/books/peer_heads.py``).
"""

from __future__ import annotations

from collections.abc import Collection

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dp.accounting.charge import Charge, attempt_charges
from dp.accounting.compose import capped_kinds
from dp.config import Mode, PrivacySpec
from dp.errors import BudgetExceededError, LedgerRolledBackError, PrivacyError
from dp.ledger.ledger import Identity, Ledger, LedgerEntry
from federation.chain.task import RoundTask
from federation.plan.charges import charges_of_round
from federation.plan.plan import Plan
from secagg import suite
from secagg.descriptor import AggregationId
from secagg.errors import Check, VerificationError
from silo_agent.books.ledger_copy import LEDGER_FILE
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError
from silo_agent.line.instruction import LedgerEcho
from silo_agent.policy.document import LimitsSection, Policy, PrivacySection
from silo_agent.policy.refusal import (
    after_none,
    agreed_before,
    cohort_grew,
    ledger_rolled_back,
    over_budget,
    run_used_up,
    too_many_today,
)

__all__ = [
    "LEDGER_FILE",
    "grown_cohort",
    "identity_name",
    "ledger_identity",
    "newest_identity",
    "open_ledger",
    "require_after_none",
    "require_attempt_budget",
    "require_budget",
    "require_echoed",
    "require_shrinking",
    "require_unsigned",
    "round_entry",
]


def open_ledger(config: SiloConfig, policy: Policy, store: LocalStore) -> Ledger:
    """The ledger of this silo, which may be new only if the silo is.

    Raises:
        ConfigError: it is gone although this silo took part in runs.
        PrivacyError: it is damaged, held by another process, or older than this silo remembers.
    """
    path = config.data_dir / LEDGER_FILE
    if not path.exists() and (store.chain_heads() or store.ledger_head() is not None):
        raise ConfigError(
            f"{path} is missing, but this silo has one: restore it from a backup; a new one would "
            "forget what was spent and which survivors were signed"
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


def round_entry(
    spec: PrivacySpec, *, identity: AggregationId, dimension: int, descriptor_sha256: bytes
) -> LedgerEntry:
    """The charge for one attempt: vector and metrics block are released together."""
    return LedgerEntry(
        run=identity.run_id,
        round=identity.round,
        attempt=identity.attempt,
        step=identity.step,
        part=identity.part,
        mode=spec.mode,
        charges=attempt_charges(spec, step=identity.step),
        dimension=dimension,
        descriptor_sha256=descriptor_sha256,
    )


def identity_name(identity: AggregationId) -> str:
    """An aggregation's name as logs show it: run/round/step/part/attempt."""
    return "/".join(str(field) for field in identity.fields())


def ledger_identity(identity: AggregationId) -> Identity:
    """An aggregation's name as the ledger writes it."""
    return Identity(
        run=identity.run_id,
        round=identity.round,
        step=identity.step,
        part=identity.part,
        attempt=identity.attempt,
    )


def newest_identity(ledger: Ledger, run_id: str) -> AggregationId | None:
    """The newest aggregation of a run that this silo joined or was charged for."""
    newest = ledger.highest_identity(run_id)
    if newest is None:
        return None
    return AggregationId(
        run_id=newest.run,
        round=newest.round,
        step=newest.step,
        part=newest.part,
        attempt=newest.attempt,
    )


def require_echoed(
    ledger: Ledger, echo: LedgerEcho | None, *, silo_id: str, signing_key: Ed25519PrivateKey
) -> None:
    """Go on only if the ledger contains the head that this silo is known to have signed.

    There is no echo if the coordinator never saw a bundle of this silo.

    Raises:
        VerificationError: ledger_head or debit_head: the echo is not of this silo's making.
        PolicyRefusalError: the ledger was rolled back.
    """
    if echo is None:
        return
    bundle = echo.bundle
    own_key = suite.verification_key(signing_key)
    signed_bytes = bundle.signed_bytes(echo.descriptor_sha256)
    if bundle.silo_id != silo_id or not suite.verify(own_key, bundle.signature, signed_bytes):
        raise VerificationError(
            Check.LEDGER_HEAD, "the echoed ledger head is not signed by this silo"
        )
    _require_signed(ledger, bundle.ledger_seq, bundle.ledger_sha256, identity=echo.identity)
    upload = echo.upload
    if upload is None:
        return
    header, debit = upload.header, upload.header.debit
    signed_bytes = header.signed_bytes(upload.ctx, upload.members_sha256)
    mine = header.silo_id == silo_id and suite.verify(own_key, header.signature, signed_bytes)
    if debit is None or not mine:
        raise VerificationError(
            Check.DEBIT_HEAD, "the echoed upload is not one that this silo signed with its debit"
        )
    _require_signed(ledger, debit.seq, debit.sha256, identity=echo.identity)


def _require_signed(ledger: Ledger, seq: int, sha256: bytes, *, identity: AggregationId) -> None:
    """Go on only if the ledger contains a record that this silo signed.

    ``identity`` is what the bundle was signed for; an upload is named by what is beside it.
    """
    try:
        ledger.require_contains(seq, sha256)
    except LedgerRolledBackError as error:
        raise ledger_rolled_back(
            f"this silo signed ledger record {seq} for {identity_name(identity)} or after it, and "
            f"privacy.ledger does not contain it ({error}): "
            "stop the silo, put the newest copy of privacy.ledger and state.json back, start it"
        ) from error


def require_budget(ledger: Ledger, plan: Plan, limits: LimitsSection, task: RoundTask) -> None:
    """Refuse before any work what could not be charged, or not today.

    Before a round's first step all of its releases must fit, the local training included; before a
    later one the release at hand. Of the day, room for this step is enough: for its upload, and for
    its training if none of this round was charged.

    Raises:
        PolicyRefusalError: epsilon would pass a cap, or the attempts of the run or of the day are
            used up.
    """
    spec, step = plan.spec, task.step
    local = spec.mode is Mode.RECORD_LOCAL
    trains = local and step == 0 and not ledger.has_trained(task.run_id, task.round)
    _require_room_in_run(ledger, plan, task.run_id, step=step, trains=trains)
    _require_room_today(ledger, limits, 2 if trains else 1)
    charges = charges_of_round(spec) if step == 0 else attempt_charges(spec, step=step)
    _require_affordable(ledger, charges)


def require_after_none(ledger: Ledger, plan: Plan, privacy: PrivacySection) -> None:
    """Refuse noise where an upload without any came before, unless the policy allows it.

    ε of the run would be true and would say little: the earlier upload is in no ε.

    Raises:
        PolicyRefusalError: it came before, and ``after_none`` is not set.
    """
    done = ledger.unprotected_releases
    if plan.spec.mode is not Mode.NONE and done and not privacy.after_none:
        raise after_none(
            f"the ledger counts {done} upload(s) in mode 'none', which no epsilon describes, and "
            "this run would state one for the same data: set privacy.after_none = true if this "
            "site goes on all the same"
        )


def require_attempt_budget(
    ledger: Ledger, plan: Plan, limits: LimitsSection, identity: AggregationId
) -> None:
    """Refuse before any key is made an attempt that could not be charged, or not today.

    Raises:
        PolicyRefusalError: epsilon would pass a cap, or the attempts of the run or of the day are
            used up.
    """
    _require_room_in_run(ledger, plan, identity.run_id, step=identity.step)
    _require_room_today(ledger, limits, 1)
    _require_affordable(ledger, attempt_charges(plan.spec, step=identity.step))


def grown_cohort(ledger: Ledger, cohort: Collection[str]) -> tuple[str, ...]:
    """The silos that were not in the newest sum without noise, in ascending order; none before it.

    Sums of cohorts that vary can be subtracted from one another, and without noise what is left is
    one silo's. So such a cohort only shrinks, over rounds and runs, unless every silo lets it vary.
    """
    newest = ledger.cohort
    return () if newest is None else tuple(sorted(set(cohort) - newest))


def require_shrinking(
    ledger: Ledger, plan: Plan, cohort: Collection[str], *, may_vary: bool
) -> None:
    """Refuse before any key is made a cohort without noise that cannot be agreed on.

    ``may_vary`` is this site's word, or its operator's; whether the others say so too shows when
    the keys are exchanged.

    Raises:
        PolicyRefusalError: The cohort has silos that were not in the newest sum without noise.
    """
    if plan.spec.mode is not Mode.NONE or may_vary:
        return
    if strangers := grown_cohort(ledger, cohort):
        raise cohort_grew(
            f"{', '.join(strangers)} not in the newest sum without noise that this silo signed: "
            "one sum subtracted from the other would tell about single silos. Leave them out, or "
            "let cohorts vary: privacy.cohort_may_vary in policy.toml, or `chorale-silo approve "
            "RUN --cohort-may-vary`, at every silo of the cohort"
        )


def require_unsigned(ledger: Ledger, task: RoundTask) -> None:
    """Go on only with a task of a step of which this silo signed no survivors yet.

    Raises:
        PolicyRefusalError: It signed those of an earlier attempt.
    """
    if ledger.has_agreed(task.run_id, task.round, task.step):
        raise agreed_before()


def _require_room_in_run(
    ledger: Ledger, plan: Plan, run_id: str, *, step: int, trains: bool = False
) -> None:
    """The guardian judged a plan by the charges it states; here it is held to them."""
    done = ledger.debits_of_run(run_id)
    counts = [("attempts", done.releases, plan.charged_releases)]
    if step == 0:
        counts.append(("attempts at a round's first step", done.first_steps, plan.first_steps))
    if trains:
        counts.append(("trainings", done.trainings, plan.charged_releases))
    for what, charged, stated in counts:
        if charged >= stated:
            raise run_used_up(
                f"run {run_id} was charged for {charged} {what}, its plan states epsilon for "
                f"{stated}"
            )


def _require_room_today(ledger: Ledger, limits: LimitsSection, debits: int) -> None:
    done, most = ledger.debits_today(), limits.max_attempts_per_day
    if done + debits > most:
        raise too_many_today(
            f"{done} attempts and trainings were charged today, {debits} more would pass "
            f"limits.max_attempts_per_day {most} (days are UTC; setting the clock back begins none)"
        )


def _require_affordable(ledger: Ledger, charges: tuple[Charge, ...]) -> None:
    projected, caps = ledger.projected_epsilons(charges), ledger.caps
    for unit in capped_kinds(charges, caps):
        cap = caps.get(unit, 0.0)
        # epsilon may round to zero, and a cap of zero still allows nothing.
        if not (projected[unit] <= cap and cap > 0.0):
            raise over_budget(
                BudgetExceededError(unit=unit, projected_epsilon=projected[unit], epsilon_cap=cap)
            )
