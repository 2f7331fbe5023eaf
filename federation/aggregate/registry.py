"""Every aggregation method by name: those that run, and those that are refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from federation.aggregate.aggregator import Aggregator
from federation.aggregate.fedavg import FedAvg
from federation.aggregate.ffa import FrozenA
from federation.aggregate.optimiser import OPTIMISERS, Optimiser
from federation.aggregate.rolora import RoLoRA
from federation.layout import Layout

AGGREGATORS: Final[Mapping[str, type[Aggregator]]] = MappingProxyType(
    {"fedavg": FedAvg, "ffa": FrozenA, "rolora": RoLoRA}
)

_SEES_FACTORS: Final = (
    "it needs each silo's own factors at the coordinator, and under masking the coordinator only "
    "ever sees sums"
)
REFUSED_METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "flora": f"stacking adapters cannot be done from a sum: {_SEES_FACTORS}",
        "fedex": f"its residual is computed from individual adapters: {_SEES_FACTORS}",
        "fedpower": f"its power iteration runs over individual adapters: {_SEES_FACTORS}",
        "lora-fair": f"its correction is fitted to individual adapters: {_SEES_FACTORS}",
        "fedsvd": (
            "freezing A with an SVD each round needs one masked sum and would be possible, but it "
            "is not available: it cannot leave the row space of the initial A; 'rolora' with the "
            "gauge does the same rewriting without that limit"
        ),
        "fedsa": (
            "averaging A alone leaves B local to each silo, and personal factors are not available"
        ),
        "fedask": "it needs two masked sums per round, and one is available",
        "flex_masked": (
            "it sums whole m by n matrices, which only small layers can afford, and is not "
            "available"
        ),
    }
)
NO_GAUGE: Final[Mapping[str, str]] = MappingProxyType(
    {"ffa": "method 'ffa' keeps A as it was, and the gauge would rewrite it: use 'rolora'"}
)
"""Methods that exclude the gauge, with the reason."""
_MOMENTS: Final = (
    "server-side moments of deltas are not available: they would be kept from round to round, and "
    "the gauge rewrites the coordinates that a moment refers to"
)
REFUSED_OPTIMISERS: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(("fedavgm", "fedadagrad", "fedyogi", "fedadam"), _MOMENTS)
)


def make_aggregator(method: str, layout: Layout, *, server_step: float, gauge: bool) -> Aggregator:
    """The method of that name over a layout.

    Raises:
        ValueError: If the method is refused or unknown, or excludes the gauge.
        LayoutError: If the gauge or the method needs LoRA pairs and the layout has others.
    """
    require_method(method)
    if gauge and method in NO_GAUGE:
        raise ValueError(NO_GAUGE[method])
    if gauge or method in {RoLoRA.name, FrozenA.name}:
        layout.pairs()
    return AGGREGATORS[method](layout=layout, server_step=server_step, gauge=gauge)


def require_method(method: str) -> None:
    """Raise ValueError with the reason unless ``method`` can run."""
    if method in REFUSED_METHODS:
        raise ValueError(f"method {method!r} is refused: {REFUSED_METHODS[method]}")
    if method not in AGGREGATORS:
        raise ValueError(f"unknown method {method!r}; use one of {', '.join(sorted(AGGREGATORS))}")


def require_optimiser(name: str) -> None:
    """Raise ValueError with the reason unless the server optimiser can run."""
    if name in REFUSED_OPTIMISERS:
        raise ValueError(f"server optimiser {name!r} is refused: {REFUSED_OPTIMISERS[name]}")
    if name not in OPTIMISERS:
        raise ValueError(
            f"unknown server optimiser {name!r}; use one of {', '.join(sorted(OPTIMISERS))}"
        )


def make_optimiser(name: str) -> Optimiser:
    """The server optimiser of that name, without state.

    Raises:
        ValueError: If it is refused or unknown.
    """
    require_optimiser(name)
    return OPTIMISERS[name]()
