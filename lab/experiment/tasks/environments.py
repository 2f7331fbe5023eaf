"""The environments of a run: built in, of installed packages, or foreign, as the file says.

``plugins`` lists environments of installed packages; ``[foreign."kind:alias"]`` describes others
with the keys that ``silo.toml`` has for them (``evolution/envs/foreign/spec.py``). Every silo of a
run has the same ones.

Invariant: within a process there is one catalogue for equal plugins and tables, so a server that
hangs is left alone by all silos at once.

A silo's variant of an environment is its own (``variants_of``); adapters are judged in the
environment as it is (``judged_catalogue``).

Covered: reading the tables, names and labels, variants. Not covered: starting a server;
``[[silo]]`` says who explores what (``tasks/own_tasks.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from evolution.envs.catalogue import Catalogue
from evolution.envs.foreign.spec import KINDS, ForeignSpec, kind_of
from evolution.envs.variants.spec import VariantSpec
from lab.experiment.checked import validated
from lab.experiment.errors import ExperimentFileError

if TYPE_CHECKING:
    from lab.experiment.tables import SiloTable

__all__ = [
    "ForeignTables",
    "HasEnvironments",
    "HasSilos",
    "catalogue_of",
    "foreign_of",
    "judged_catalogue",
    "labels_of",
    "variants_of",
]

ForeignTables = Mapping[str, Mapping[str, Any]]
"""``[foreign]`` as the file has it: by name, checked by ``foreign_of``."""


class HasEnvironments(Protocol):
    """What says which environments there are: a file or a run."""

    @property
    def plugins(self) -> tuple[str, ...]:
        """Of installed packages."""

    @property
    def foreign(self) -> dict[str, dict[str, Any]]:
        """Tables by name."""


class HasSilos(HasEnvironments, Protocol):
    """A run."""

    @property
    def silos(self) -> tuple[SiloTable, ...]:
        """Who takes part."""


def catalogue_of(owner: HasEnvironments) -> Catalogue:
    """The catalogue of a file or a run; always the same object for equal tables.

    Raises:
        EnvironmentPluginError: No installed package has one of the plugins.
        ExperimentFileError: A foreign table is wrong.
    """
    return _catalogue(owner.plugins, json.dumps(owner.foreign, sort_keys=True))


def variants_of(run: HasSilos, indices: Sequence[int]) -> dict[str, VariantSpec]:
    """The variants that silos have, by environment; those that are pooled have the same ones."""
    return {
        name: silo.variant
        for silo in (run.silos[index] for index in indices)
        if silo.variant is not None
        for name in silo.environments
    }


def judged_catalogue(run: HasSilos) -> Catalogue:
    """The environments as everybody is judged in them, with the line that they may say.

    Raises:
        EnvironmentPluginError: No installed package has one of the plugins.
        ExperimentFileError: A foreign table is wrong.
    """
    everyone = variants_of(run, range(len(run.silos)))
    return catalogue_of(run).with_variants(everyone).unperturbed()


@lru_cache(maxsize=16)
def _catalogue(plugins: Sequence[str], tables: str) -> Catalogue:
    return Catalogue(plugins=plugins, foreign=foreign_of(json.loads(tables)))


def foreign_of(tables: ForeignTables) -> dict[str, ForeignSpec]:
    """The specs of foreign environments, by name; without ``family`` a table has its alias.

    Raises:
        ExperimentFileError: With every problem found.
    """
    specs: dict[str, ForeignSpec] = {}
    problems: list[str] = []
    for name, table in tables.items():
        where = f'foreign."{name}"'
        try:
            kind, alias = kind_of(name)
            if "name" in table:
                raise ValueError("name: the name is the table's own, between the quotes")  # noqa: TRY301
            document = {"family": alias, **table, "name": name}
            specs[name] = validated(KINDS[kind], document, prefix=where)
        except ExperimentFileError as error:
            problems += error.problems
        except ValueError as error:
            problems.append(f"{where}: {error}")
    if problems:
        raise ExperimentFileError(problems)
    return specs


def labels_of(owner: HasEnvironments, name: str) -> tuple[str, ...]:
    """The labels that an environment's tasks are dealt out by.

    Raises:
        EnvironmentFailureError: It cannot be made.
    """
    environment = catalogue_of(owner).make(name)
    try:
        return tuple(environment.labels)
    finally:
        environment.close()
