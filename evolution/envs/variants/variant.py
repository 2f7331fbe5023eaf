"""An environment as one silo has it: its stages replaced, and a line that says which it is.

Invariants:

1. A variant changes what answers a search and nothing else: name, family, tasks, wishes, reward and
   success are the environment's own.
2. Where everybody is judged nothing is perturbed (FedAgent validates so): ``perturbed=False`` gives
   the environment as it is, and with a descriptor the line of the unperturbed one of its kind.
3. Lines are of words that the small base model knows, and two variants of a pool have two lines.
4. Stages are made once for each content and variant and are shared by all objects.

Covered: every environment that is ``Searchable``; a descriptor alone also for one that says itself
which it is (``SaysDescriptor``). Not covered: descriptors in sentences, for larger models.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Protocol, TypeVar, runtime_checkable

from evolution.envs.environment import Environment
from evolution.envs.variants.bm25_reweighting import CONSTANTS, matching_line
from evolution.envs.variants.catalog_split import split_catalog
from evolution.envs.variants.field_subset import field_line, index_fields
from evolution.envs.variants.lookalike import inject_lookalikes, lookalike_line
from evolution.envs.variants.rank_wrapper import ORDERS, RankWrapper, rank_line
from evolution.envs.variants.spec import VariantSpec
from evolution.envs.variants.stages import Searchable, Stages
from evolution.errors import EnvironmentSetupError

__all__ = ["SaysDescriptor", "descriptor_of", "require_variable", "stages_of", "varied"]


EnvironmentT = TypeVar("EnvironmentT", bound=Environment)


@runtime_checkable
class SaysDescriptor(Protocol):
    """An environment that can say in a line how it differs from its siblings."""

    def describe(self) -> str:
        """The line."""


def varied(environment: EnvironmentT, spec: VariantSpec, *, perturbed: bool = True) -> EnvironmentT:
    """Make an environment the variant of itself that a spec names; it is the same object.

    Raises:
        EnvironmentSetupError: The environment has nothing that the variant could change, or no
            descriptor.
    """
    require_variable(type(environment), spec)
    if perturbed and spec.kind != "none":
        _perturb(environment, spec)
    if spec.descriptor:
        environment.descriptor = descriptor_of(environment, spec, perturbed=perturbed)
    return environment


def require_variable(kind: type[Environment], spec: VariantSpec) -> None:
    """Refuse a variant that no object of a class could be.

    Raises:
        EnvironmentSetupError: The class has no stages, or no descriptor.
    """
    # By its members, as the protocols are meant: an object need not be made.
    if spec.kind != "none" and not (hasattr(kind, "stages") and hasattr(kind, "use")):
        raise EnvironmentSetupError(
            f"{kind.name} has no search whose stages could differ: variants of kind "
            f"{spec.kind!r} are for market and others with stages of their own"
        )
    if spec.kind == "none" and spec.descriptor and not hasattr(kind, "describe"):
        raise EnvironmentSetupError(
            f"{kind.name} has no line that says which it is: leave descriptor out"
        )


@lru_cache(maxsize=256)
def stages_of(stages: Stages, spec: VariantSpec) -> Stages:
    """The stages of a variant; the same object for the same arguments.

    Raises:
        EnvironmentSetupError: They cannot be.
    """
    content, place = stages.content, spec.place
    match spec.kind:
        case "catalog-split" if spec.index is not None:
            env_div, keep_ratio = spec.split
            own = split_catalog(content, index=spec.index, env_div=env_div, keep_ratio=keep_ratio)
            return dataclasses.replace(stages, content=own)
        case "field-subset":
            return dataclasses.replace(stages, encoding=index_fields(content, place))
        case "bm25-reweighting":
            return dataclasses.replace(stages, matching=CONSTANTS[place])
        case "lookalike":
            return dataclasses.replace(stages, content=_with_lookalikes(content, place))
        case "rank-wrapper" if spec.index is not None and place:
            rendering = RankWrapper(order=ORDERS[place], index=spec.index)
            return dataclasses.replace(stages, rendering=rendering)
    return stages


def descriptor_of(environment: Environment, spec: VariantSpec, *, perturbed: bool = True) -> str:
    """The line that says which variant this is.

    Raises:
        EnvironmentSetupError: The environment as it is has none.
    """
    place = spec.place if perturbed else 0
    match spec.kind:
        case "catalog-split":
            number = " ".join(str(spec.index)) if perturbed else "0"
            return f"search in box {number} ."
        case "field-subset":
            return field_line(place)
        case "bm25-reweighting":
            return matching_line(place)
        case "lookalike":
            return lookalike_line(place if perturbed else None)
        case "rank-wrapper":
            return rank_line(place)
    if not isinstance(environment, SaysDescriptor):
        raise EnvironmentSetupError(
            f"{environment.name} has no line that says which it is: leave descriptor out"
        )
    return environment.describe()


def _perturb(environment: object, spec: VariantSpec) -> None:
    if isinstance(environment, Searchable):
        environment.use(stages_of(environment.stages, spec))


_with_lookalikes = lru_cache(maxsize=16)(inject_lookalikes)
# One content for all silos that have it, so that they share an index too.
