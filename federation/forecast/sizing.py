"""The numbers of a plan that fits: from so many silos, episodes and an ε.

    t, n_min   the threshold of the roster: so the most silos may drop
    quorum     one more, where there is one more: a round then stands the loss of a silo
    tasks      episodes over tries; a silo samples from those of ``WINDOW`` rounds
    q, B̄, S    all tasks in every step, and ``PASSES`` steps: over a whole run that has the least
               noise beside the signal. A step on twice ``LARGE_STEP`` tasks gains little, so there
               are more steps on a part of them then, up to ``MOST_STEPS``
    z, z_m     the least, four digits from above, with which the run and its spare attempts stay
               within ε (``federation.forecast.calibration``)
    Δ          the finest grid, up to 2^20, with which no sum leaves the ring

What does not fit is refused with the number that would, found by sizing again.

Invariant: no figure here is a guess about privacy; ε is the accountant's, and the cosine the
forecast's. Clips, rates and times are starting values: their lines in the plan say where they are
from (``federation.forecast.proposal``).

Covered: all four modes with one sum a release. Not covered: groups, selection, silo noise on top of
``record_local``, users as units; what a site allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dp.accounting.rdp import charged_attempts
from dp.config import RECORD_MODES, Mode, PrivacySpec, RecordSpec
from dp.errors import PrivacyError
from dp.noise.grid import Grid
from dp.noise.share import no_wrap, per_silo_sigma, summed_sigma
from federation.errors import PlanError
from federation.forecast.calibration import calibrated
from federation.forecast.signal import Signal
from federation.plan.charges import epsilon_of_releases, units_of
from federation.plan.rules import MAX_RELEASES
from secagg.errors import ParameterError
from secagg.parameters import MAX_SILOS, MIN_SILOS, threshold

__all__ = ["LEAST_DIMENSION", "MIN_COSINE", "Size", "Wish", "size_of"]

LEAST_DIMENSION: Final = 3072
"""One factor of rank 1 on all layers of the small base model: what a plan has to carry at least."""
MIN_COSINE: Final = 0.5
"""As a plan has it that says nothing."""
WINDOW: Final = 2
PASSES: Final = 2
LARGE_STEP: Final = 1024
MOST_STEPS: Final = 16
RATE: Final = 0.012
"""Of Adam, in a silo that takes noisy steps."""
_CLIPS: Final = {
    Mode.NONE: 10.0,
    Mode.SILO: 1.0,
    Mode.RECORD_LOCAL: 0.5,
    Mode.RECORD_DISTRIBUTED: 0.5,
}
_NO_EPSILON: Final = 1.0
"""What a plan without noise has as its cap, which holds for nothing."""
_MOST_EPSILON: Final = 100.0
"""Nothing above it is proposed: it would protect nobody."""
_MOST_EPISODES: Final = 100_000
_FEW: Final = 256
"""Adapters with fewer numbers are none."""
_FINEST: Final = 20
_COARSEST: Final = 4
_STEPS_PER_ROOT_DIMENSION: Final = 16
_ROOM: Final = 0.9
"""Of the ring; noise takes the rest."""
_DIGITS: Final = 4
_MOST_S: Final = 7 * 24 * 3600
"""Of any time in a plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What is known before there is a plan."""

    silos: int
    """n."""
    episodes: int
    """That each silo explores in a round, tries included."""
    epsilon: float | None
    """Of the unit that the mode protects, for the whole run; None in mode ``none`` alone."""
    delta: float
    """δ."""
    mode: Mode
    """What is protected."""
    colluding: int
    """c, of the roster."""
    rounds: int
    """T."""
    tries: int
    """At each task."""
    dimension: int
    """Coordinates of an upload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The numbers of a plan."""

    wish: Wish
    """What they are for."""
    spec: PrivacySpec
    """Clip, noise, grid, sampling."""
    threshold: int
    """t, which is n_min as well."""
    quorum: int
    """Ready silos that open a round."""
    tasks: int
    """That a silo explores in a round."""
    window: int
    """Rounds whose tasks it keeps."""
    charged: int
    """Attempts that ε is for: releases and spare ones."""
    epsilon: float
    """What the run costs the protected unit at most; infinite in mode ``none``."""
    cosine: float
    """Upper bound on the cosine between the noisy and the noiseless mean of a step."""
    most_dimension: int | None
    """Coordinates up to which the cosine is at least ``MIN_COSINE``; None where there is no noise.
    """
    ready_after_s: int
    """In the record modes, else 0."""
    ready_deadline_s: int
    """From the task to the last ready report."""
    step_answer_after_s: int
    """In ``record_distributed``, else 0."""
    phase_deadline_s: int
    """For each step of secure aggregation."""

    @property
    def population(self) -> int:
        """Tasks that a silo can sample from at most."""
        return self.tasks * self.window


def size_of(wish: Wish) -> Size:
    """The numbers that fit.

    Raises:
        PlanError: None do; each problem names what to change, and to what.
    """
    problems = _problems(wish)
    if problems:
        raise PlanError(problems)
    try:
        found = _sized(wish)
    except PrivacyError as error:
        raise PlanError([_does_not_fit(wish, str(error))]) from error
    if found.cosine < MIN_COSINE:
        text = (
            f"the predicted cosine between the noisy and the noiseless mean of {wish.dimension:,} "
            f"trained numbers is {found.cosine:.2g} at best, and below {MIN_COSINE:g} noise is "
            "what is learned"
        )
        raise PlanError([_does_not_fit(wish, text, found.most_dimension)])
    return found


def _problems(wish: Wish) -> list[str]:
    """What no noise could mend."""
    problems = []
    n, c, tries = wish.silos, wish.colluding, wish.tries
    if not MIN_SILOS <= n <= MAX_SILOS:
        problems.append(
            f"--silos {n}: a sum hides its parts from {MIN_SILOS} silos on, and a round has at "
            f"most {MAX_SILOS}: use --silos {min(max(n, MIN_SILOS), MAX_SILOS)}"
        )
    else:
        try:
            threshold(n, c)
        except ParameterError as error:
            ways = [f"--silos {c + 2}"] if 1 <= c <= MAX_SILOS - 2 else []
            ways.append(f"--colluding {max(1, n - 2) if c >= 1 else 1}")
            problems.append(f"--colluding {c}: no quorum is possible, {error}: {_use(ways)}")
    if wish.episodes % tries or wish.episodes < tries:
        down = max(wish.episodes, 0) // tries * tries
        ways = [f"--episodes {count}" for count in (down, down + tries) if count >= tries]
        problems.append(
            f"--episodes {wish.episodes}: every task gets {tries} tries, which are counted as "
            f"episodes: {_use([*ways, '--tries 1'])}"
        )
    if wish.episodes > _MOST_EPISODES:
        problems.append(
            f"--episodes {wish.episodes}: a round of so many is none; use --episodes "
            f"{_MOST_EPISODES - _MOST_EPISODES % tries}"
        )
    if not 0.0 < wish.delta < 1.0:
        problems.append(f"--delta {wish.delta:g}: it lies between 0 and 1: use --delta 1e-5")
    if wish.mode is Mode.NONE and wish.epsilon is not None:
        problems.append(
            "--epsilon: mode 'none' adds no noise, so no ε holds in it: leave --epsilon out, or "
            "choose a mode with noise: --mode record_local"
        )
    if wish.mode is not Mode.NONE and wish.epsilon is None:
        problems.append(f"--epsilon: mode {wish.mode.value!r} needs one: use --epsilon 8")
    if wish.epsilon is not None and not 0.0 < wish.epsilon <= 1e18:
        problems.append(f"--epsilon {wish.epsilon:g}: it is a number above 0: use --epsilon 8")
    return problems or _too_many_releases(wish)


def _too_many_releases(wish: Wish) -> list[str]:
    """The same of the steps, once their number is known."""
    record = _record(wish)
    steps = record.steps_per_round if record and wish.mode is Mode.RECORD_DISTRIBUTED else 1
    if wish.rounds * steps <= MAX_RELEASES:
        return []
    problem = (
        f"--rounds {wish.rounds}: with {steps} aggregations a round a run has at most "
        f"{MAX_RELEASES}: use --rounds {MAX_RELEASES // steps}"
    )
    return [problem]


def _sized(wish: Wish) -> Size:
    """The numbers, whether the cosine is high enough or not.

    Raises:
        PrivacyError: There is no noise for this ε.
    """
    t = threshold(wish.silos, wish.colluding)
    shape = PrivacySpec(
        mode=wish.mode,
        unit="task",
        clip_l2=_CLIPS[wish.mode],
        noise_multiplier=0.0 if wish.mode is Mode.NONE else 1.0,
        metrics_noise_multiplier=0.0 if wish.mode is Mode.NONE else 1.0,
        delta=wish.delta,
        epsilon_cap=_NO_EPSILON if wish.epsilon is None else wish.epsilon,
        record=_record(wish),
    )
    charged = charged_attempts(wish.rounds * shape.sums_per_round)
    firsts = charged_attempts(wish.rounds)
    spec = shape
    if wish.mode is not Mode.NONE:
        spec = _noise(shape, charged, firsts)
        spec = replace(
            spec,
            noise_multiplier=_up(spec.noise_multiplier),
            metrics_noise_multiplier=_up(spec.metrics_noise_multiplier),
        )
    spec = replace(spec, grid=_grid(spec, wish, t - wish.colluding))
    most = _most_dimension(wish, spec, t)
    spec = _with_delta_clip(wish, spec, most)
    (unit,) = units_of(spec)
    work_s = 60 + 3 * wish.episodes
    record = spec.record
    step_s = 30 + -(-record.expected_units // 2) if record and spec.sums_per_round > 1 else 0
    upload_s = -(-4 * wish.dimension // 1_000_000)
    return Size(
        wish=wish,
        spec=spec,
        threshold=t,
        quorum=min(wish.silos, t + 1),
        tasks=wish.episodes // wish.tries,
        window=_window(wish),
        charged=charged,
        epsilon=epsilon_of_releases(spec, releases=charged, first_steps=firsts)[unit].epsilon,
        cosine=_signal(wish, spec, t, wish.dimension).cosine(wish.silos),
        most_dimension=most,
        ready_after_s=min(work_s, _MOST_S // 2) if wish.mode in RECORD_MODES else 0,
        ready_deadline_s=min(2 * work_s, _MOST_S),
        step_answer_after_s=step_s,
        phase_deadline_s=min(60 + 2 * step_s + upload_s, _MOST_S),
    )


@lru_cache(maxsize=256)
def _noise(shape: PrivacySpec, charged: int, firsts: int) -> PrivacySpec:
    """It does not depend on the silos, whose number is searched."""
    return calibrated(shape, charged, firsts)


def _window(wish: Wish) -> int:
    """Rounds whose tasks are trained on."""
    return min(WINDOW, wish.rounds) if wish.mode in RECORD_MODES else 1


def _record(wish: Wish) -> RecordSpec | None:
    """q, B̄ and S; None in the modes without units."""
    if wish.mode not in RECORD_MODES:
        return None
    population = wish.episodes // wish.tries * _window(wish)
    parts = max(1, min(population // LARGE_STEP, MOST_STEPS // PASSES))
    parts = max(parts, -(-population // _most_units(wish)))
    # The rate as it is written, from below: B̄ is then no less than what it samples.
    rate = math.floor(1e6 / parts) / 1e6
    return RecordSpec(
        sampling_rate=rate,
        expected_units=math.ceil(Fraction(repr(rate)) * population),
        steps_per_round=min(PASSES * parts, MOST_STEPS),
        delta_clip_l2=1.0 if wish.mode is Mode.RECORD_LOCAL else None,
    )


def _most_units(wish: Wish) -> int:
    """B̄ up to which a grid that is fine enough for the dimension has room in the ring."""
    if wish.mode is not Mode.RECORD_DISTRIBUTED:
        return _MOST_EPISODES
    room = _ROOM * 2.0**31 / (wish.silos * _finer(wish.dimension))
    # B̄ + 8√B̄ vectors at most (``dp.config.RecordSpec.max_units``).
    return max(1, int((math.sqrt(16.0 + room) - 4.0) ** 2))


def _finer(dimension: int) -> int:
    """The least power of two that is a grid for so many coordinates (``dp.noise.grid``)."""
    return 1 << max(_COARSEST, math.ceil(math.log2(_STEPS_PER_ROOT_DIMENSION * dimension**0.5)))


def _with_delta_clip(wish: Wish, spec: PrivacySpec, most: int | None) -> PrivacySpec:
    """The bound of a delta that is protected already: as long as S steps of Adam can make it."""
    record = spec.record
    if record is None or record.delta_clip_l2 is None:
        return spec
    numbers = max(wish.dimension, min(most or 0, 1_000_000))
    longest = record.steps_per_round * RATE * math.sqrt(numbers)
    return replace(spec, record=replace(record, delta_clip_l2=_up(longest, digits=2)))


def _grid(spec: PrivacySpec, wish: Wish, divisor: int) -> int:
    """Δ: the largest power of two, up to 2^20, with which neither a silo's sum nor all wrap.

    Raises:
        PrivacyError: There is none.
    """
    exponent = _FINEST
    while True:
        tried = replace(spec, grid=1 << exponent)
        try:
            _require_room(tried, wish, divisor)
        except PrivacyError:
            if exponent == _COARSEST:
                raise
            exponent -= 1
        else:
            return tried.grid


def _require_room(spec: PrivacySpec, wish: Wish, divisor: int) -> None:
    silos, dimension = wish.silos, wish.dimension
    release = spec.release
    for clip_l2, steps in ((spec.clip_l2, spec.grid), (release.clip_l2, release.grid)):
        Grid(clip_l2=clip_l2, steps=steps, dimension=dimension)
    sigma = per_silo_sigma(release.noise_multiplier, release.grid, divisor, divisor, 0)
    no_wrap(silos, release.max_units, release.grid, summed_sigma(sigma, silos))
    if spec.mode is Mode.RECORD_LOCAL and spec.record is not None:
        no_wrap(1, spec.record.max_units, spec.grid, spec.noise_multiplier * spec.grid)


def _signal(wish: Wish, spec: PrivacySpec, t: int, dimension: int) -> Signal:
    return Signal(spec=spec, dimension=dimension, colluding=wish.colluding, n_min=t)


def _most_dimension(wish: Wish, spec: PrivacySpec, t: int) -> int | None:
    """(noise/signal)² grows with d, and at ``MIN_COSINE`` it is 1/cos² − 1."""
    if spec.mode is Mode.NONE:
        return None
    one = 1.0 / _signal(wish, spec, t, 1).cosine(wish.silos) ** 2 - 1.0
    most = (1.0 / MIN_COSINE**2 - 1.0) / one if one > 0.0 else math.inf
    finest = min(spec.grid, spec.release.grid) // _STEPS_PER_ROOT_DIMENSION
    return int(min(most, finest**2))


def _up(value: float, *, digits: int = _DIGITS) -> float:
    """The least number of so many digits that is not below."""
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    rounded = math.ceil(value * scale) / scale
    return rounded if rounded >= value else math.nextafter(rounded, math.inf)


def _does_not_fit(wish: Wish, text: str, most_dimension: int | None = None) -> str:
    """The problem, and each single number with which it is none."""
    ways = []
    epsilon = _least_epsilon(wish)
    if epsilon is not None:
        ways.append(f"--epsilon {epsilon:g}")
    if wish.mode in RECORD_MODES:
        tasks = _least(
            lambda count: replace(wish, episodes=count * wish.tries),
            wish.episodes // wish.tries,
            _MOST_EPISODES // wish.tries,
        )
        if tasks is not None:
            ways.append(f"--episodes {tasks * wish.tries}")
    silos = _least(lambda count: replace(wish, silos=count), wish.silos, MAX_SILOS)
    if silos is not None:
        ways.append(f"--silos {silos}")
    if wish.rounds > 1 and _fits(replace(wish, rounds=1)):
        ways.append("--rounds 1")
    if wish.mode is Mode.SILO and _fits(replace(wish, mode=Mode.RECORD_LOCAL)):
        ways.append("--mode record_local, which protects each task and not the silo as a whole")
    if most_dimension is not None and most_dimension >= _FEW:
        ways.append(f"an adapter of at most {most_dimension:,} uploaded numbers (--dimension)")
    if not ways:
        ways.append("more ε, more silos and more episodes at once: no single one of them is enough")
    return (
        f"ε = {wish.epsilon:g} in mode {wish.mode.value!r} with {wish.silos} silos of "
        f"{wish.episodes} episodes a round does not fit: {text}: {_use(ways)}"
    )


def _fits(wish: Wish) -> bool:
    try:
        return _sized(wish).cosine >= MIN_COSINE
    except PrivacyError:
        return False


def _least_epsilon(wish: Wish) -> float | None:
    """The least ε, to two digits from above, that fits; None if none is worth proposing."""
    low = high = wish.epsilon or 0.0
    while not _fits(replace(wish, epsilon=high)):
        low, high = high, 2.0 * high
        if high > 2.0 * _MOST_EPSILON:
            return None
    while _up(high, digits=2) > _up(low * 1.001, digits=2):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _fits(replace(wish, epsilon=middle)) else (middle, high)
        if high - low < 1e-3 * high:
            break
    found = _up(high, digits=2)
    return found if found <= _MOST_EPSILON else None


def _least(changed: Callable[[int], Wish], start: int, most: int) -> int | None:
    """The least count above ``start`` that fits; None if not even ``most`` does."""
    low, high = start, start
    while not _fits(changed(high)):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(changed(middle)) else (middle, high)
    return high


def _use(ways: list[str]) -> str:
    return "use " + ", or ".join(ways)
