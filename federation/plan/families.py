"""The environment families of a plan, as both sides derive them from its text alone.

A descriptor of version 2 names them, and who declares none of them is not counted as a contributor.
Nobody needs an environment installed to know them.

    plain name (built in, or of an installed package)    the name
    ``kind:alias`` (described in a silo's silo.toml)     the alias
    no environment, as under method ``constant``         ``constant``

A silo that gives such an environment another public family declares the plan's as well
(``silo_agent.config.SiloConfig.families``).

Covered: names. Not covered: which silo has which environment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from secagg import bounds

if TYPE_CHECKING:
    from federation.plan.plan import Plan

__all__ = ["CONSTANT", "families_of", "family_of_name"]

CONSTANT: Final = "constant"
"""The family of a plan without environments."""
_FAMILY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")


def family_of_name(environment: str) -> str:
    """The family that a plan's name of an environment stands for."""
    alias = environment.rpartition(":")[2]
    # A name that no environment can have is still the name of a family.
    whole = _FAMILY.fullmatch(alias) is None
    return (environment if whole else alias)[: bounds.MAX_FAMILY_CHARACTERS]


def families_of(plan: Plan) -> tuple[str, ...]:
    """The plan's families in ascending order; at least one."""
    names = {family_of_name(name) for name in plan.evolve.environments}
    return tuple(sorted(names or {CONSTANT}))
