"""A draft resolved to a registration, and whatever departs from one before it runs.

Invariants:
    1. Every setting and seed that is registered is one of the experiment's file, and every setting
       of it is judged on the same panels.
    2. A run that is held to a registration is one that it names, with the same values, judged on
       the same tasks. Nothing is run where one of them departs.
    3. A directory that is held to a registration stays so, and began with it: no run was finished
       there before, and none is set aside.

Covered: before a run. Not covered: after it (``verdicts.py``); whether somebody ran the same
elsewhere before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from evolution.errors import EnvironmentFailureError
from evolution.model.identity import base_sha256
from lab.evidence.errors import RegistrationError
from lab.evidence.registration import (
    Hypothesis,
    PanelOf,
    Registration,
    RunOf,
    read_draft,
    read_registration,
    write_registration,
)
from lab.experiment.config import Run, load_experiment
from lab.experiment.errors import ExperimentError
from lab.experiment.tasks.panels import panels_of

__all__ = [
    "BESIDE_RESULTS",
    "hold_directory",
    "register",
    "registration_of",
    "require_no_new_start",
    "require_registered",
]

BESIDE_RESULTS: Final = "registration.json"
"""In a directory of results that are held to it."""
_MOST_SHOWN: Final = 20


def register(path: Path) -> Registration:
    """What a draft comes to with the experiment's file as it is now.

    Raises:
        RegistrationError: The draft is wrong, or the experiment has not what it names.
        ExperimentError: The experiment's file is wrong.
        BaseModelError: The base cannot be read.
    """
    draft = read_draft(path)
    file = path.resolve().parent / draft.experiment
    loaded = load_experiment(file)
    problems = [
        f"seeds: {file.name} has no seed {seed}" for seed in draft.seeds if seed not in loaded.seeds
    ]
    known = [row.name for row in loaded.setting]
    problems += [
        f"{file.name} has no setting {name!r}; it has {', '.join(known)}"
        for name in (*draft.primary, *draft.secondary)
        if name not in known
    ]
    if problems:
        raise RegistrationError([f"{path}: {problem}" for problem in problems])
    base_dir = (file.parent / loaded.base).resolve()
    named = {*draft.primary, *draft.secondary}
    runs = [
        run
        for run in loaded.runs(base_dir=base_dir, base_sha256=base_sha256(base_dir))
        if run.setting in named and run.seed in draft.seeds
    ]
    if problems := list(_unread(draft.hypothesis, runs)):
        raise RegistrationError([f"{path}: {problem}" for problem in problems])
    return Registration(
        **draft.model_dump(exclude={"experiment", "stopping", "hypothesis"}),
        stopping=draft.stopping,
        hypothesis=draft.hypothesis,
        experiment=loaded.name,
        experiment_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        purpose=loaded.judge.purpose,
        panels=_panels(runs),
        runs=tuple(RunOf(setting=run.setting, seed=run.seed, sha256=run.sha256) for run in runs),
    )


def _unread(hypotheses: Sequence[Hypothesis], runs: Sequence[Run]) -> Iterator[str]:
    """Figures that the experiment's file does not judge."""
    for one in hypotheses:
        number, temperature = one.figure.round, one.figure.temperature
        for run in {run.setting: run for run in runs if run.setting in one.settings}.values():
            if temperature not in run.judge.temperatures:
                yield f"{one.name}: {run.setting} is not judged at temperature {temperature:g}"
            if isinstance(number, int) and run.rounds and not _is_judged(run, number):
                yield f"{one.name}: {run.setting} is not judged after round {number}"


def _is_judged(run: Run, number: int) -> bool:
    return 0 < number <= run.rounds and any(
        run.judged_after(number, shared=shared) for shared in (True, False)
    )


def require_registered(registration: Registration, content: bytes, runs: Sequence[Run]) -> None:
    """Refuse runs that depart from what was registered; ``content`` is the experiment's file.

    Raises:
        RegistrationError: With what departs.
    """
    problems = list(_departures(registration, content, runs))
    if not problems:
        # Tasks are begun for this, so it comes last.
        problems = list(_other_panels(registration, _panels(runs)))
    if problems:
        more = len(problems) - _MOST_SHOWN
        shown = problems[:_MOST_SHOWN] + ([f"and {more} more"] if more > 0 else [])
        raise RegistrationError([f"registration {registration.name!r}: {one}" for one in shown])


def require_no_new_start(directory: Path) -> None:
    """Refuse to set aside results that are held to a registration: that would be another try.

    Raises:
        RegistrationError: They are.
    """
    path = directory / BESIDE_RESULTS
    if path.exists():
        name = read_registration(path).name
        raise RegistrationError(
            [f"{directory} is held to the registration {name!r}: nothing of it is begun anew"]
        )


def hold_directory(directory: Path, registration: Registration | None, *, finished: int) -> None:
    """Hold a directory of results to a registration, or find that it is held to another.

    ``finished`` is how many runs are done there.

    Raises:
        RegistrationError: It is held to another, or to one where none is given, or runs were
            finished there before it was held.
    """
    path = directory / BESIDE_RESULTS
    if not path.exists():
        if registration is None:
            return
        if finished:
            raise RegistrationError(
                [
                    (
                        f"{directory}: {finished} runs were finished before it was held to a "
                        "registration: choose another --out"
                    )
                ]
            )
        write_registration(path, registration)
        return
    held = read_registration(path)
    if registration is None:
        raise RegistrationError(
            [f"{directory} is held to the registration {held.name!r}: give --registration"]
        )
    if held.digest != registration.digest:
        raise RegistrationError(
            [f"{directory} is held to another registration, {held.name!r} ({held.digest[:12]})"]
        )


def registration_of(directories: Sequence[Path], given: Path | None) -> Registration | None:
    """What results are to be held to: what is given, or else what they are held to themselves.

    Raises:
        RegistrationError: It is none, or they are held to another, or to several.
    """
    found = {
        one.digest: one
        for one in (
            read_registration(directory / BESIDE_RESULTS)
            for directory in directories
            if (directory / BESIDE_RESULTS).exists()
        )
    }
    if given is not None:
        asked = read_registration(given)
        if found.keys() - {asked.digest}:
            raise RegistrationError([f"the results are held to another registration than {given}"])
        return asked
    if len(found) > 1:
        names = ", ".join(one.name for one in found.values())
        raise RegistrationError([f"the results are held to several registrations: {names}"])
    return next(iter(found.values()), None)


def _departures(registration: Registration, content: bytes, runs: Sequence[Run]) -> Iterator[str]:
    found = hashlib.sha256(content).hexdigest()
    if found != registration.experiment_sha256:
        yield (
            f"the experiment's file has the digest {found[:12]}, and "
            f"{registration.experiment_sha256[:12]} was registered: it was changed since"
        )
    named = {*registration.primary, *registration.secondary}
    for setting in dict.fromkeys(run.setting for run in runs):
        if setting not in named:
            yield (
                f"setting {setting!r} is in no hypothesis and not secondary: leave it out, by "
                "--only with those that are"
            )
    for seed in dict.fromkeys(run.seed for run in runs):
        if seed not in registration.seeds:
            yield f"seed {seed} was not registered: leave it out, by --seed with those that were"
    for run in runs:
        registered = registration.sha256_of(run.setting, run.seed)
        if registered is not None and registered != run.sha256:
            yield (
                f"{run.setting} at seed {run.seed} has other values than were registered: its base "
                "or its partition's flags are others, or this version reads the file otherwise"
            )


def _other_panels(registration: Registration, panels: Mapping[str, PanelOf]) -> Iterator[str]:
    for name, panel in panels.items():
        registered = registration.panels.get(name)
        if registered != panel:
            told = "none" if registered is None else f"{registered.sha256[:12]}"
            yield f"the panel of {name} is {panel.sha256[:12]}, and {told} was registered"


def _panels(runs: Sequence[Run]) -> dict[str, PanelOf]:
    """The panels that all runs are judged on.

    Raises:
        RegistrationError: Two settings are judged on unlike ones, or one cannot be begun.
    """
    found: dict[str, PanelOf] = {}
    for run in {run.setting: run for run in runs}.values():
        try:
            panels = panels_of(run)
        except (ExperimentError, EnvironmentFailureError) as error:
            raise RegistrationError([f"panels of {run.setting}: {error}"]) from error
        for panel in panels:
            one = PanelOf(tasks=len(panel.opened), sha256=panel.sha256)
            if found.setdefault(panel.environment, one) != one:
                raise RegistrationError(
                    [
                        (
                            f"{run.setting} is judged on other tasks of {panel.environment} than "
                            "the settings before it: register them apart"
                        )
                    ]
                )
    return found
