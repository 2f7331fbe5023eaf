"""Which setting of an experiment plays which part in the summary.

A setting plays a role if its name is the role's, or else if it is the only one whose method is.
Names are compared without case, hyphens, underscores and spaces; some roles have more than one
spelling. Any other choice is made by whoever asks for the report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lab.report.errors import ReportError
from lab.report.results import Experiment

__all__ = ["ROLES", "setting_for"]

ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "pretrained": ("pretrained", "base"),
    "local": ("local", "localstatic"),
    "local_evolution": ("localevolution", "localselfevolution", "alone"),
    "central": ("central", "centralstatic", "centralised", "centralisedstatic"),
    "fedit": ("fedit",),
    "fedse": ("fedse",),
}
"""Role to spellings."""


def setting_for(role: str, experiment: Experiment, chosen: Mapping[str, str]) -> str | None:
    """The setting that plays a role, or None.

    What whoever asks has chosen for a role counts where the experiment has that setting.

    Raises:
        ReportError: A chosen role does not exist.
    """
    unknown = sorted(set(chosen) - set(ROLES))
    if unknown:
        raise ReportError(f"no such role: {', '.join(unknown)}; there are {', '.join(ROLES)}")
    settings = experiment.settings
    if chosen.get(role) in settings:
        return chosen[role]
    spellings = ROLES[role]
    named = [setting for setting in settings if _plain(setting) in spellings]
    running = [s for s in settings if _plain(experiment.method_of(s)) in spellings]
    found = named or running
    return found[0] if len(found) == 1 else None


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()
