"""Every aggregation method by name: those that run, and those that are refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from federation.adapter.layout import Layout
from federation.aggregate.adam import Adam
from federation.aggregate.aggregator import Aggregator
from federation.aggregate.delta_moments import FedAdagrad, FedAdam, FedAvgM, FedYogi
from federation.aggregate.fedavg import FedAvg
from federation.aggregate.fedsa import SharedA
from federation.aggregate.fedsvd import FedSvd
from federation.aggregate.ffa import FrozenA
from federation.aggregate.optimiser import FedAvg as PlainDeltas
from federation.aggregate.optimiser import Optimiser, Sgd
from federation.aggregate.rolora import RoLoRA

AGGREGATORS: Final[Mapping[str, type[Aggregator]]] = MappingProxyType(
    {"fedavg": FedAvg, "ffa": FrozenA, "rolora": RoLoRA, "fedsvd": FedSvd, "fedsa": SharedA}
)
IMPLIED_GAUGE: Final = frozenset({FedSvd.name})
"""Methods that rewrite the product after every round, whatever the plan says of the gauge."""

_SEES_FACTORS: Final = (
    "it needs each silo's own factors at the coordinator, and under masking the coordinator only "
    "ever sees sums"
)
_LAB: Final = "the lab runs it (`chorale-lab run`)"
_ONE_SUM: Final = f"a plan's round has one, and its privacy is accounted for one; {_LAB}"
REFUSED_METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "flora": f"stacking adapters cannot be done from a sum: {_SEES_FACTORS}",
        "fedex": f"its residual is computed from individual adapters: {_SEES_FACTORS}",
        "fedpower": f"its power iteration runs over individual adapters: {_SEES_FACTORS}",
        "lora-fair": f"its correction is fitted to individual adapters: {_SEES_FACTORS}",
        "fedask": f"its sketches are two masked sums a round: {_ONE_SUM}",
        "flex_masked": (
            "it sums whole m by n products, an uplink of m·n for every layer where factors cost "
            f"r(m + n): {_LAB}"
        ),
        "weighted": f"weighted deltas and their weights are two masked sums a round: {_ONE_SUM}",
        "scaffold": (
            f"deltas and control variates are two masked sums a round, both private: {_ONE_SUM}"
        ),
    }
)
NO_GAUGE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ffa": (
            "method 'ffa' keeps A as it was, and the gauge would rewrite it: use 'rolora', or "
            "'fedsvd', which is 'ffa' with the gauge"
        ),
        "fedsa": (
            "method 'fedsa' leaves B to each silo, so there is no common product that the gauge "
            "could rewrite"
        ),
    }
)
"""Methods that exclude the gauge, with the reason."""
NO_RECORD_MODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fedsa": (
            "method 'fedsa' trains a personal B on the units whose ΔA is charged, and every later "
            "ΔA is computed through that B: what was spent on a unit would not be what the ledger "
            "says; use 'ffa', 'fedsvd' or 'rolora'"
        )
    }
)
"""Methods that exclude the record-level modes, with the reason."""
ALTERNATING: Final = frozenset({RoLoRA.name})
"""Methods that train one factor in the odd rounds and the other in the even ones."""
INCOMPLETE_ADAPTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fedsa": (
            "the published adapter of method 'fedsa' has B = 0, so on its own it is the base "
            "model's function: only a silo that adds its personal B has an adapted model"
        )
    }
)
"""Methods whose published adapter is not the whole result, with what to tell whoever exports it."""
OPTIMISERS: Final[Mapping[str, type[Optimiser]]] = MappingProxyType(
    {
        "fedavg": PlainDeltas,
        "sgd": Sgd,
        "adam": Adam,
        "fedavgm": FedAvgM,
        "fedadagrad": FedAdagrad,
        "fedyogi": FedYogi,
        "fedadam": FedAdam,
    }
)
GROUP_METHODS: Final = frozenset({FedAvg.name})
"""Methods that a robust mean of groups may be applied with."""
GROUP_OPTIMISERS: Final = frozenset({"fedavg", "fedavgm", "sgd", "adam"})
"""Server optimisers of such a mean: the others take the noise of one sum off their second moments,
and a median's is another."""
GRADIENT_OPTIMISERS: Final = frozenset({Sgd.name, Adam.name})
"""Those that step on sums of gradients; the others step on sums of deltas."""


def make_aggregator(method: str, layout: Layout, *, server_step: float, gauge: bool) -> Aggregator:
    """The method of that name over a layout.

    Raises:
        ValueError: If the method is refused or unknown, or excludes the gauge.
        LayoutError: If the gauge or the method needs LoRA pairs and the layout has others.
    """
    require_method(method)
    if gauge and method in NO_GAUGE:
        raise ValueError(NO_GAUGE[method])
    gauge = gauge or method in IMPLIED_GAUGE
    if gauge or method != FedAvg.name:
        layout.pairs()
    return AGGREGATORS[method](layout=layout, server_step=server_step, gauge=gauge)


def moments_problem(method: str, optimiser: str, *, gauge: bool) -> str:
    """Why a server optimiser cannot go with a method; empty if it can."""
    if not OPTIMISERS[optimiser].crosses_rounds:
        return ""
    if gauge or method in IMPLIED_GAUGE:
        which = "the gauge" if gauge else f"method {method!r}"
        return (
            f"{optimiser!r} keeps moments from round to round, and {which} rewrites the "
            "coordinates that they refer to"
        )
    if method in ALTERNATING:
        return (
            f"{optimiser!r} keeps moments from round to round, and method {method!r} trains other "
            "coordinates in the next round"
        )
    return ""


def require_method(method: str) -> None:
    """Raise ValueError with the reason unless ``method`` can run."""
    if method in REFUSED_METHODS:
        raise ValueError(f"method {method!r} is refused: {REFUSED_METHODS[method]}")
    if method not in AGGREGATORS:
        raise ValueError(f"unknown method {method!r}; use one of {', '.join(sorted(AGGREGATORS))}")


def require_optimiser(name: str) -> None:
    """Raise ValueError unless there is a server optimiser of that name."""
    if name not in OPTIMISERS:
        raise ValueError(
            f"unknown server optimiser {name!r}; use one of {', '.join(sorted(OPTIMISERS))}"
        )


def make_optimiser(name: str) -> Optimiser:
    """The server optimiser of that name, without state; a ValueError if it is unknown."""
    require_optimiser(name)
    return OPTIMISERS[name]()
