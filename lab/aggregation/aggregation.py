"""Every aggregation method of the lab by name.

    fedavg ffa rolora fedsvd fedsa     the product's, one sum (``lab.aggregation.single_sum``)
    fedask flex_masked                 means of products
    weighted                           by solved episodes
    scaffold                           control variates

Options, all of them public numbers; a method refuses those that it does not know:

    fedask         sketch (p, default twice the rank), product_clip_l2 (default clip_l2), seed (0)
    flex_masked    product_clip_l2 (default clip_l2)
    weighted       w_max (default 64)
    scaffold       control_clip_l2 (default clip_l2)
    single sums    noise_variance (of a coordinate of the mean; default 0): what the adaptive server
                   optimisers take off their second moment

Invariant: a setting that would have no effect, or that contradicts another, is refused.

Covered: names, options, combinations. The seam is ``lab.aggregation.method``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from federation.adapter.layout import Layout
from federation.aggregate.aggregator import Aggregator
from federation.aggregate.registry import (
    AGGREGATORS,
    GRADIENT_OPTIMISERS,
    REFUSED_METHODS,
    make_aggregator,
    make_optimiser,
    moments_problem,
)
from lab.aggregation.fedask import FedAsk
from lab.aggregation.flex_masked import FlexMasked
from lab.aggregation.method import AggregationError, LabAggregation, MeanOf, SiloUpdate
from lab.aggregation.scaffold import Scaffold
from lab.aggregation.single_sum import SingleSum
from lab.aggregation.weighted import Weighted

__all__ = [
    "METHODS",
    "AggregationError",
    "LabAggregation",
    "MeanOf",
    "SiloUpdate",
    "make_lab_aggregation",
]

DEFAULT_WEIGHT_CAP: Final = 64.0
MAX_OPTION: Final = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    """What every method is made from."""

    method: str
    layout: Layout
    silos: int
    of: int
    clip_l2: float
    server_step: float
    gauge: bool
    server_optimiser: str
    options: Mapping[str, float]

    def aggregator(self, method: str) -> Aggregator:
        return make_aggregator(method, self.layout, server_step=self.server_step, gauge=self.gauge)

    def positive(self, name: str, default: float) -> float:
        value = float(self.options.get(name, default))
        if not (math.isfinite(value) and 0.0 < value <= MAX_OPTION):
            raise AggregationError(f"option {name!r} is a number above 0, got {value!r}")
        return value

    def whole(self, name: str, default: float, *, least: int) -> int:
        value = float(self.options.get(name, default))
        if not (value.is_integer() and least <= value <= MAX_OPTION):
            raise AggregationError(f"option {name!r} is a whole number from {least}: {value!r}")
        return int(value)

    @property
    def rank(self) -> int:
        return max(pair.a.shape[0] for pair in self.layout.pairs())


def _single_sum(settings: _Settings) -> LabAggregation:
    variance = float(settings.options.get("noise_variance", 0.0))
    if not 0.0 <= variance <= MAX_OPTION:
        raise AggregationError(f"option 'noise_variance' is a number from 0, got {variance!r}")
    return SingleSum(
        settings.aggregator(settings.method),
        make_optimiser(settings.server_optimiser),
        silos=settings.silos,
        clip_l2=settings.clip_l2,
        noise_variance=variance,
    )


def _fedask(settings: _Settings) -> LabAggregation:
    return FedAsk(
        settings.layout,
        silos=settings.silos,
        product_clip_l2=settings.positive("product_clip_l2", settings.clip_l2),
        server_step=settings.server_step,
        sketch=settings.whole("sketch", 2 * settings.rank, least=settings.rank),
        seed=settings.whole("seed", 0, least=0),
    )


def _flex_masked(settings: _Settings) -> LabAggregation:
    return FlexMasked(
        settings.layout,
        silos=settings.silos,
        product_clip_l2=settings.positive("product_clip_l2", settings.clip_l2),
        server_step=settings.server_step,
    )


def _weighted(settings: _Settings) -> LabAggregation:
    return Weighted(
        settings.aggregator("fedavg"),
        make_optimiser(settings.server_optimiser),
        silos=settings.silos,
        clip_l2=settings.clip_l2,
        weight_cap=settings.whole("w_max", DEFAULT_WEIGHT_CAP, least=1),
    )


def _scaffold(settings: _Settings) -> LabAggregation:
    return Scaffold(
        settings.aggregator("fedavg"),
        silos=settings.silos,
        of=settings.of,
        clip_l2=settings.clip_l2,
        control_clip_l2=settings.positive("control_clip_l2", settings.clip_l2),
    )


METHODS: Final[Mapping[str, Callable[[_Settings], LabAggregation]]] = MappingProxyType(
    {
        **dict.fromkeys(AGGREGATORS, _single_sum),
        "fedask": _fedask,
        "flex_masked": _flex_masked,
        "weighted": _weighted,
        "scaffold": _scaffold,
    }
)
"""What makes each method."""
OPTIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        **dict.fromkeys(AGGREGATORS, frozenset({"noise_variance"})),
        "fedask": frozenset({"sketch", "product_clip_l2", "seed"}),
        "flex_masked": frozenset({"product_clip_l2"}),
        "weighted": frozenset({"w_max"}),
        "scaffold": frozenset({"control_clip_l2"}),
    }
)
_BALANCES: Final = "its factors are balanced after every round as they are"
_NO_GAUGE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fedask": _BALANCES,
        "flex_masked": _BALANCES,
        "scaffold": "it would rewrite the coordinates that the control variates refer to",
    }
)
_NO_COORDINATES: Final = "its step is on products, whose coordinates no moment can refer to"
_PLAIN_ONLY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fedask": _NO_COORDINATES,
        "flex_masked": _NO_COORDINATES,
        "scaffold": "its analysis is for the plain server step",
    }
)


def make_lab_aggregation(
    method: str,
    layout: Layout,
    *,
    silos: int,
    clip_l2: float,
    server_step: float,
    gauge: bool,
    server_optimiser: str,
    options: Mapping[str, float],
    of: int | None = None,
) -> LabAggregation:
    """The method of that name, without state.

    Args:
        method: A key of ``METHODS``.
        layout: Of the whole adapter.
        silos: How many silos every round has.
        clip_l2: C, of one silo's delta.
        server_step: η_s.
        gauge: Whether the product is rewritten after each round.
        server_optimiser: How a mean delta is applied.
        options: The method's own; see the module.
        of: How many silos there are, where only some take part in a round; None: no more.

    Raises:
        AggregationError: If a name is unknown, a number is out of range, or settings contradict
            each other.
        LayoutError: If the method needs LoRA pairs and the layout has others.
    """
    settings = _Settings(
        method=method,
        layout=layout,
        silos=silos,
        of=silos if of is None else of,
        clip_l2=clip_l2,
        server_step=server_step,
        gauge=gauge,
        server_optimiser=server_optimiser,
        options=options,
    )
    _require_known(settings)
    try:
        problem = _contradiction(settings)
        made = None if problem else METHODS[method](settings)
    except ValueError as error:
        # Those of the product's registry become this package's.
        raise AggregationError(str(error)) from error
    if made is None:
        raise AggregationError(problem)
    return made


def _require_known(settings: _Settings) -> None:
    method = settings.method
    if method not in METHODS:
        reason = f": {REFUSED_METHODS[method]}" if method in REFUSED_METHODS else ""
        raise AggregationError(
            f"there is no method {method!r}{reason}; use one of {', '.join(sorted(METHODS))}"
        )
    if settings.silos < 1:
        raise AggregationError(f"a mean needs at least one silo, got {settings.silos}")
    if settings.of < settings.silos:
        raise AggregationError(f"{settings.silos} silos cannot take part of {settings.of}")
    for name, value in (("clip_l2", settings.clip_l2), ("server_step", settings.server_step)):
        if not (math.isfinite(value) and value > 0.0):
            raise AggregationError(f"{name} is a number above 0, got {value!r}")
    if unknown := sorted(set(settings.options) - OPTIONS[method]):
        raise AggregationError(
            f"method {method!r} has no option {unknown[0]!r}, but {sorted(OPTIONS[method])}"
        )


def _contradiction(settings: _Settings) -> str:
    """Why settings that are right one by one do not go together; empty if they do.

    Raises:
        ValueError: If there is no such server optimiser.
    """
    method, optimiser = settings.method, make_optimiser(settings.server_optimiser).name
    if settings.gauge and method in _NO_GAUGE:
        return f"method {method!r} takes no gauge: {_NO_GAUGE[method]}"
    if optimiser in GRADIENT_OPTIMISERS:
        return f"{optimiser!r} steps on gradients, and the lab sums deltas"
    if method in _PLAIN_ONLY and optimiser != "fedavg":
        return f"method {method!r} takes no server optimiser: {_PLAIN_ONLY[method]}"
    return moments_problem(method, optimiser, gauge=settings.gauge)
