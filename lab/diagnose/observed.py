"""The patterns of settings that have run: FedAgent's decision tree after training.

1. What do a setting's silos differ in? By its values: kinds of environments, or tasks alone.
2. Its curve is the success of the shared adapter on the held-out tasks, all counted environments
   pooled, of one temperature.
3. Its baseline is a setting that pools everything (``central_*``): where tasks differ the uniform
   mixture, where variants differ the one environment in which all are judged, for a pooled learner
   has no variant. Where silos have environments of different names it is each silo alone on its own
   tasks, all together (the first term of Δ_pol). Where the results have neither, the best silo
   alone.
4. The rule of ``evolution/diagnose/patterns.py``, then for C the dominant slack by shape.

This module has no prediction and asks for none.

Covered: results of ``chorale-lab run``, several directories of one experiment. Not covered:
settings whose silos end with adapters of their own, which have no common curve.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from pydantic import ValidationError

from evolution.diagnose.patterns import Assigned, Curve, Judged, Locus, assign
from evolution.diagnose.slack import Dominant, dominant_slack
from evolution.diagnose.worlds import kind_of
from evolution.envs.variants.spec import VariantSpec
from lab.experiment.methods import METHODS
from lab.report.errors import ReportError
from lab.report.lines import EvalLine
from lab.report.results import Experiment
from lab.report.scores import counted_environments

__all__ = ["Asked", "Observed", "Seen", "curves_of", "locus_of", "observe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What whoever asks may decide."""

    temperature: float | None = None
    """Of the curves; the lowest that was judged where it is absent."""
    baselines: Mapping[str, str] = field(default_factory=dict)
    """Setting → the setting it is compared with, where the rule above should not choose."""
    dial: Mapping[str, float] = field(default_factory=dict)
    """Setting → its value of a divergence dial, of settings that are otherwise equal."""
    horizons: Mapping[str, float] = field(default_factory=dict)
    """Setting → its horizon, likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One setting."""

    setting: str
    locus: Locus
    baseline: str
    """What it is compared with."""
    curves: tuple[Curve, ...]
    assigned: Assigned
    slack: Dominant | None
    """Of pattern C."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """All settings of an experiment."""

    temperature: float
    seen: tuple[Seen, ...]
    left_out: Mapping[str, str]
    """Settings without a pattern, and why."""
    minus_best_local: float | None
    """Plateau of the first federated setting minus that of the best silo alone."""
    minus_central: float | None
    """The same minus that of the pooled learner."""


def observe(experiment: Experiment, asked: Asked) -> Observed:
    """Assign patterns.

    Raises:
        ReportError: A setting that is named is not there, or nothing was judged.
    """
    temperature = _temperature(experiment, asked)
    named = {**asked.baselines, **dict.fromkeys(asked.dial, "")}
    named |= dict.fromkeys(asked.horizons, "")
    for name in (*named, *asked.baselines.values()):
        if name not in experiment.settings:
            known = ", ".join(experiment.settings)
            raise ReportError(f"there is no finished setting {name!r}; there are {known}")
    seen: list[Seen] = []
    left_out: dict[str, str] = {}
    for setting in experiment.settings:
        method = METHODS.get(experiment.method_of(setting))
        if method is None or method.topology != "federated":
            continue
        curves = curves_of(experiment, setting, temperature)
        if not curves:
            left_out[setting] = "its silos end with adapters of their own: no common curve"
            continue
        baseline, plateaus = _baseline(experiment, setting, temperature, asked)
        if not plateaus:
            left_out[setting] = (
                "nothing to compare with: run a central_* or local_* setting, or name --baseline"
            )
            continue
        locus = locus_of(experiment, setting)
        assigned = assign(curves, plateaus, locus=locus)
        seen.append(
            Seen(
                setting=setting,
                locus=locus,
                baseline=baseline,
                curves=curves,
                assigned=assigned,
                slack=_slack(experiment, curves, plateaus, temperature, asked)
                if assigned.pattern == "C"
                else None,
            )
        )
    reference = seen[0] if seen else None
    return Observed(
        temperature=temperature,
        seen=tuple(seen),
        left_out=left_out,
        minus_best_local=_minus(reference, _best_alone(experiment, temperature)[1]),
        minus_central=_minus(reference, _central(experiment, temperature)[1]),
    )


def locus_of(experiment: Experiment, setting: str) -> Locus:
    """What a setting's silos differ in, by the values that its run wrote down.

    Raises:
        ReportError: They are not of the form.
    """
    config: Any = next(run.config for run in experiment.runs if run.setting == setting)
    kinds = set()
    try:
        for silo in config.get("silos", ()):
            variant = silo.get("variant")
            spec = None if variant is None else VariantSpec.model_validate(variant)
            kinds |= {kind_of(str(name), spec) for name in silo["environments"]}
    except (AttributeError, KeyError, TypeError, ValidationError) as error:
        raise ReportError(f"setting {setting!r}: its silos are not of the form") from error
    return "environments" if len(kinds) > 1 else "tasks"


def curves_of(experiment: Experiment, setting: str, temperature: float) -> tuple[Curve, ...]:
    """The shared adapter's success by seed; none where no adapter belongs to all."""
    return _curves(
        experiment,
        temperature,
        lambda line: line.setting == setting and line.scope == "global" and line.silo < 0,
    )


def _curves(
    experiment: Experiment, temperature: float, of: Callable[[EvalLine], bool]
) -> tuple[Curve, ...]:
    counted = counted_environments(experiment)
    found: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in experiment.evals:
        if line.temperature == temperature and line.environment in counted and of(line):
            found[line.seed][line.round].append(line.outcomes)
    return tuple(
        Curve(
            seed=seed,
            points=tuple(
                Judged(
                    round=number,
                    successes=sum(one.count("1") for one in outcomes),
                    tasks=sum(map(len, outcomes)),
                )
                for number, outcomes in sorted(rounds.items())
            ),
        )
        for seed, rounds in sorted(found.items())
    )


def _baseline(
    experiment: Experiment, setting: str, temperature: float, asked: Asked
) -> tuple[str, dict[int, float]]:
    if chosen := asked.baselines.get(setting):
        curves = curves_of(experiment, chosen, temperature)
        return chosen, {curve.seed: curve.plateau() for curve in curves}
    names = {line.environment for line in experiment.evals if line.own}
    found = ("", dict[int, float]())
    if len(names) > 1:
        found = _each_alone(experiment, temperature)
    if not found[1]:
        found = _central(experiment, temperature)
    return found if found[1] else _best_alone(experiment, temperature)


def _each_alone(experiment: Experiment, temperature: float) -> tuple[str, dict[int, float]]:
    """Every silo by itself on its own tasks, all silos pooled."""
    for setting in experiment.settings:
        if _topology(experiment, setting) == "alone":

            def of(line: EvalLine, setting: str = setting) -> bool:
                return line.setting == setting and line.scope == "alone" and bool(line.own)

            curves = _curves(experiment, temperature, of)
            return f"{setting}, own tasks", {c.seed: c.plateau() for c in curves}
    return "", {}


def _central(experiment: Experiment, temperature: float) -> tuple[str, dict[int, float]]:
    """The best pooled learner that explores, else the best of demonstrations alone."""
    found = {
        setting: {c.seed: c.plateau() for c in curves_of(experiment, setting, temperature)}
        for setting in experiment.settings
        if _topology(experiment, setting) == "central"
    }
    found = {name: plateaus for name, plateaus in found.items() if plateaus}
    if not found:
        return "", {}
    best = max(found, key=lambda name: mean(found[name].values()))
    return best, found[best]


def _best_alone(experiment: Experiment, temperature: float) -> tuple[str, dict[int, float]]:
    """The silo that gets furthest by itself, on all tasks that it is judged on."""
    found: dict[str, dict[int, float]] = {}
    for setting in experiment.settings:
        if _topology(experiment, setting) != "alone":
            continue
        lines = [line for line in experiment.evals if line.setting == setting]
        for silo in sorted({line.silo for line in lines if line.silo >= 0}):

            def of(line: EvalLine, setting: str = setting, silo: int = silo) -> bool:
                return line.setting == setting and line.silo == silo

            curves = _curves(experiment, temperature, of)
            if curves:
                found[f"{setting}, silo {silo}"] = {c.seed: c.plateau() for c in curves}
    if not found:
        return "", {}
    best = max(found, key=lambda name: mean(found[name].values()))
    return best, found[best]


def _topology(experiment: Experiment, setting: str) -> str:
    method = METHODS.get(experiment.method_of(setting))
    return "" if method is None else method.topology


def _slack(
    experiment: Experiment,
    curves: Sequence[Curve],
    baseline: Mapping[int, float],
    temperature: float,
    asked: Asked,
) -> Dominant:
    level = mean(baseline.values())

    def gaps(values: Mapping[str, float]) -> dict[float, list[float]] | None:
        if not values:
            return None
        found: dict[float, list[float]] = {}
        for setting, value in values.items():
            own = _baseline(experiment, setting, temperature, asked)[1]
            for curve in curves_of(experiment, setting, temperature):
                found.setdefault(value, []).append(own.get(curve.seed, level) - curve.plateau())
        return found or None

    return dominant_slack(curves, by_dial=gaps(asked.dial), by_horizon=gaps(asked.horizons))


def _temperature(experiment: Experiment, asked: Asked) -> float:
    judged = sorted({line.temperature for line in experiment.evals})
    if not judged:
        raise ReportError("nothing was judged: no curve, no pattern")
    if asked.temperature is None:
        return judged[0]
    if asked.temperature not in judged:
        raise ReportError(
            f"nothing was judged at temperature {asked.temperature:g}, but at "
            f"{', '.join(f'{one:g}' for one in judged)}"
        )
    return asked.temperature


def _minus(reference: Seen | None, plateaus: Mapping[int, float]) -> float | None:
    if reference is None or not plateaus:
        return None
    return reference.assigned.plateau - mean(plateaus.values())
