"""What a plan costs: whose budget it charges, how often at most, and which ε that makes.

The guardian of a silo, the forecast, and the coordinator's budget all ask here, so that a run has
one price; ``dp.accounting.charge`` says what a single training or attempt costs, and
``dp.accounting.compose`` which units inside a charged one pay for it too.

    unit kinds    the silo in ``none`` and ``silo``, the plan's unit at record level, and both where
                  ``record_local`` is composed with ``silo``; and every unit inside one of them
    most of it    every spare attempt is made, and under ``record_local`` each attempt needed a
                  training of its own

Invariants:
    1. Every unit kind that the plan speaks of has a figure. The plan's own cap is for those of
       ``units_of``; the kinds inside them are shown, and each silo's policy may cap them.
    2. Without noise ε is infinite as soon as anything is released.

Covered: a run, and a round of it. Not covered: what one silo's ledger was charged, also by other
runs (``dp.ledger.ledger``).
"""

from __future__ import annotations

import math
from dataclasses import replace

from dp.accounting.charge import UNIT_KINDS, Charge, UnitKind, run_charges
from dp.accounting.compose import Epsilon, Spent, kinds_inside
from dp.config import RECORD_MODES, Mode, PrivacySpec
from dp.errors import PrivacyError
from federation.plan.plan import Plan


def own_unit(spec: PrivacySpec) -> UnitKind:
    """The unit kind that a mode is about; the silo where nobody is protected."""
    return spec.unit if spec.mode in RECORD_MODES else "silo"


def protected_unit(spec: PrivacySpec) -> UnitKind | None:
    """Whose contribution a mode hides; None where it hides nobody's."""
    return None if spec.mode is Mode.NONE else own_unit(spec)


def units_of(spec: PrivacySpec) -> tuple[UnitKind, ...]:
    """The unit kinds whose ε a plan states."""
    own = own_unit(spec)
    composed = spec.record is not None and spec.record.silo_noise_multiplier > 0.0
    return ("silo", own) if composed else (own,)


def shown_units(spec: PrivacySpec) -> tuple[UnitKind, ...]:
    """``units_of`` and, where there is noise, every kind inside one of them."""
    own = units_of(spec)
    inside = () if spec.mode is Mode.NONE else kinds_inside(own[0])
    return tuple(unit for unit in UNIT_KINDS if unit in own or unit in inside)


def charges_of_run(plan: Plan) -> tuple[Charge, ...]:
    """What a run costs at most, unit kind by unit kind, its spare attempts included."""
    return run_charges(plan.spec, releases=plan.charged_releases, first_steps=plan.first_steps)


def charges_of_round(spec: PrivacySpec) -> tuple[Charge, ...]:
    """What a round costs in which nothing is lost: its local training and all its releases."""
    return run_charges(spec, releases=spec.sums_per_round, first_steps=1)


def charged_steps(plan: Plan) -> int:
    """Noisy optimiser steps that a record-level run may take, those of spare attempts included."""
    spec = plan.spec
    if spec.record is None:
        return 0
    trained_per_release = spec.record.steps_per_round if spec.mode is Mode.RECORD_LOCAL else 1
    return plan.charged_releases * trained_per_release


def most_debits(plan: Plan) -> int:
    """Attempts and local trainings that a run may be charged for, spare ones included."""
    trainings = plan.charged_releases if plan.spec.mode is Mode.RECORD_LOCAL else 0
    return plan.charged_releases + trainings


def epsilon_of_releases(
    spec: PrivacySpec, *, releases: int, first_steps: int, trainings: int | None = None
) -> dict[UnitKind, Epsilon]:
    """ε at the spec's δ of so many attempts that reached the upload, and of local trainings.

    Of each unit kind that the plan speaks of and, where there is noise, of those inside it. Failed
    attempts are included; ``first_steps`` of them were of a round's step 0. Under ``record_local``
    the trainings are one silo's; as many as releases when not given.

    Raises:
        SpecError: If there are more first steps than releases.
    """
    spent = Spent.of_run(spec, releases=releases, first_steps=first_steps, trainings=trainings)
    known = spent.epsilons(spec.delta)
    if spec.mode is Mode.NONE:
        unknown = math.inf if releases else 0.0
        return {unit: replace(known[unit], epsilon=unknown) for unit in units_of(spec)}
    return {unit: known[unit] for unit in shown_units(spec)}


def epsilon_told(
    spec: PrivacySpec, *, releases: int, first_steps: int, trainings: int
) -> dict[UnitKind, Epsilon]:
    """The same for people: infinite where counts do not fit each other, rather than an error."""
    try:
        return epsilon_of_releases(
            spec, releases=releases, first_steps=first_steps, trainings=trainings
        )
    except PrivacyError:
        return dict.fromkeys(shown_units(spec), Epsilon(math.inf))


def epsilon_of_run(plan: Plan) -> dict[UnitKind, Epsilon]:
    """ε of a whole run at the plan's δ, its spare attempts included."""
    return epsilon_of_releases(
        plan.spec, releases=plan.charged_releases, first_steps=plan.first_steps
    )


def epsilon_of_round(spec: PrivacySpec) -> dict[UnitKind, Epsilon]:
    """ε of a round in which nothing is lost."""
    return epsilon_of_releases(spec, releases=spec.sums_per_round, first_steps=1)
