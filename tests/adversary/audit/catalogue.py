"""Every audit of the real mechanisms, in a short form for each test run and a long one.

The claims are those of a plan: 1/z for one release, the privacy loss distribution's ε for a run.
What may differ between the forms is the number of releases alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.audit.canaries import observe
from lab.audit.gaussian import audit_gaussian
from lab.audit.noise import audit_independence, audit_presence, audit_scale
from lab.audit.steps import audit_steps
from tests.adversary.audit.canary_rows import CLIP_L2
from tests.adversary.audit.group_steps import GroupSteps
from tests.adversary.audit.histories import audit_histories
from tests.adversary.audit.local_steps import LocalSteps
from tests.adversary.audit.shared_steps import BLOCK, SILOS, SharedReleases, SharedSteps, silo_spec

CANARIES = 1000
Q, Z, DELTA = 0.1, 1.0, 1e-3
# Steps of a run, and the privacy loss distribution's ε of it; a test computes them again.
CLAIMED_EPSILON = {100: 4.784, 30: 2.573}


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How much an audit looks at."""

    single_releases: int
    runs: int
    shared_runs: int
    silo_releases: int
    group_releases: int
    noise_dimension: int
    steps: int
    histories: int
    confidence: float
    """Of the bounds on one Gaussian and on the noise's variance. Of a sound mechanism's bounds on a
    Gaussian, of which both rates' margins have to be exceeded together, 0.95 is wrong once in 350
    times and 0.999 once in 600,000; of those on a variance, once in 300 and once in 20,000."""


SHORT = Size(
    single_releases=10_000,
    runs=2,
    shared_runs=1,
    silo_releases=400,
    group_releases=100,
    noise_dimension=2000,
    steps=30,
    histories=60,
    confidence=0.999,
)
LONG = Size(
    single_releases=200_000,
    runs=30,
    shared_runs=6,
    silo_releases=6_000,
    group_releases=3_000,
    noise_dimension=20_000,
    steps=100,
    histories=2000,
    confidence=0.95,
)
HISTORIES_SEED = 20
NOISE_STEPS = 100
NOISE_RELEASES = 40


def local_single(directory: Path, size: Size):
    """One step of record_local without sampling, against mu = 1/z."""
    steps = size.single_releases // CANARIES
    mechanism = LocalSteps(directory, q=1.0, z=Z, steps=steps, dimension=CANARIES)
    seen = observe(mechanism, canaries=CANARIES, steps=steps, runs=1)
    mechanism.close()
    return (
        audit_gaussian(
            present=seen.present.ravel(),
            absent=seen.absent.ravel(),
            noise_multiplier=Z,
            confidence=size.confidence,
            name="record_local, one release",
        ),
    )


def local_run(directory: Path, size: Size):
    """All steps of record_local with sampling, against the accountant's epsilon."""
    mechanism = LocalSteps(directory, q=Q, z=Z, steps=size.steps, dimension=CANARIES)
    seen = observe(mechanism, canaries=CANARIES, steps=size.steps, runs=size.runs)
    mechanism.close()
    return (
        audit_steps(
            seen, q=Q, z=Z, delta=DELTA, claimed_epsilon=CLAIMED_EPSILON[size.steps],
            name="record_local, all steps",
        ),
    )  # fmt: skip


def local_noise(directory: Path, size: Size):
    """The noise of record_local's steps: everywhere, and new every time."""
    mechanism = LocalSteps(
        directory, q=Q, z=Z, steps=NOISE_STEPS, dimension=size.noise_dimension, population=100
    )
    vectors = mechanism.noise(NOISE_STEPS)
    mechanism.close()
    return (
        *audit_presence(vectors, sigma=Z, confidence=size.confidence, name="record_local, noise"),
        audit_independence(vectors, name="record_local, noise of steps"),
    )


def local_scale(directory: Path, size: Size):
    """The noise of record_local beside 0, 8 and 9 units, at coordinates that no unit pulls."""
    unused = slice(9, None)
    noise = {}
    mechanism = LocalSteps(
        directory, q=0.5, z=Z, steps=5, dimension=size.noise_dimension, population=16
    )
    for units in (0, 8, 9):
        step = mechanism()
        present = np.arange(size.noise_dimension) < units
        noise[units] = np.concatenate([step(present, index)[unused] for index in range(5)])
    mechanism.close()
    return (audit_scale(noise, name="record_local, noise scale"),)


def group_single(directory: Path, size: Size):
    """One step of GRPO in record_local on a language model: the unit is a task's group of tries."""
    present, absent = GroupSteps(directory, z=Z, releases=size.group_releases).seen()
    return (
        audit_gaussian(
            present=present, absent=absent, noise_multiplier=Z, confidence=size.confidence,
            name="record_local GRPO, one release",
        ),
    )  # fmt: skip


def shared_single(directory: Path, size: Size):
    """One sum of record_distributed over three silos, without sampling."""
    steps = size.single_releases // CANARIES
    mechanism = SharedSteps(directory, q=1.0, z=Z, dimension=CANARIES)
    seen = observe(mechanism, canaries=CANARIES, steps=steps, runs=1)
    mechanism.close()
    return (
        audit_gaussian(
            present=seen.present.ravel(),
            absent=seen.absent.ravel(),
            noise_multiplier=Z,
            confidence=size.confidence,
            name="record_distributed, one sum",
        ),
    )


def shared_run(directory: Path, size: Size):
    """All steps of record_distributed with sampling, against the accountant's epsilon."""
    mechanism = SharedSteps(directory, q=Q, z=Z, dimension=CANARIES)
    seen = observe(mechanism, canaries=CANARIES, steps=size.steps, runs=size.shared_runs)
    mechanism.close()
    return (
        audit_steps(
            seen, q=Q, z=Z, delta=DELTA, claimed_epsilon=CLAIMED_EPSILON[size.steps],
            name="record_distributed, all steps",
        ),
    )  # fmt: skip


def silo_single(directory: Path, size: Size):
    """One sum of mode silo: a whole silo's delta and figures against none, one at a time."""
    releases = SharedReleases(directory, spec=silo_spec(Z), dimension=4)
    # Half of the clip on each coordinate, and far more than the clip: it must be cut to C.
    delta = np.full(4, 100.0 * CLIP_L2, dtype=np.float32)
    every = dict.fromkeys(BLOCK.names, 1e9)
    seen = {}
    for there in (True, False):
        along = []
        for _ in range(size.silo_releases // 2):
            vectors = [delta if there else None, None, None]
            figures = [every if there else None, None, None]
            total, block = releases.total(vectors, figures)
            along.append((total.sum() / 2.0, block.sum() / (BLOCK.size**0.5 * BLOCK.grid)))
        seen[there] = np.array(along)
    releases.close()
    return tuple(
        audit_gaussian(
            present=seen[True][:, part],
            absent=seen[False][:, part],
            noise_multiplier=Z,
            confidence=size.confidence,
            name=name,
        )
        for part, name in enumerate(("silo, one sum", "silo, metrics block"))
    )


def shared_noise(directory: Path, size: Size):
    """The shares of three silos: a third of the variance each, and unrelated."""
    dimension = size.noise_dimension
    releases = SharedReleases(directory, spec=silo_spec(Z), dimension=dimension)
    shares = [
        releases.shares([None] * SILOS, [None] * SILOS).view(np.int32)[:, :dimension]
        for _ in range(NOISE_RELEASES)
    ]
    releases.close()
    flat = np.concatenate(shares) / releases.grid.steps
    return (
        *audit_presence(
            flat, sigma=Z / SILOS**0.5, confidence=size.confidence, name="noise shares"
        ),
        audit_independence(flat, name="noise of silos and releases"),
    )


def histories(directory: Path, size: Size):
    """The ledger's figure for every kind of unit, against an independent composition."""
    return audit_histories(directory, histories=size.histories, seed=HISTORIES_SEED)


AUDITS = (
    local_single,
    local_run,
    local_noise,
    local_scale,
    group_single,
    shared_single,
    shared_run,
    silo_single,
    shared_noise,
    histories,
)
