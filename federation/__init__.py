"""What the coordinator and every silo must compute identically: plans, layouts, updates, the chain.

    plan.py          the run plan (tables: plan_sections.py, what they ask of each other:
                     plan_rules.py, wording: plan_problems.py; TOML: toml_text.py)
    forecast.py      what a plan costs and protects, before it starts (signal.py, epsilon.py)
    alternatives.py  the same plan in the other privacy modes
    layout.py        named tensors ↔ one flat vector
    adapter.py       the published bytes
    aggregate/       fedavg, ffa and rolora, the server optimisers and step, the gauge
    replay.py        an optimiser's state from a round's earlier sums
    verify.py        does the published adapter follow from the sum?
    sums.py          the published sum, the metrics block, agreement between silos
    noisy_figures.py how a figure that carries noise is shown
    task.py          round tasks
    record.py        the provenance chain and round results
    wire.py          protobuf
    export.py        an adapter as a peft directory
    invite.py        the invite both daemons read
    renewal.py       what both compute when a certificate is renewed
    version.py       versions, protocols, and who can work with whom
    checkup.py       a doctor's steps and findings (validity.py, installed.py)
    reach.py         name, port and handshake, one by one, for doctors

Pure but for reach.py: no clock, no network, no torch. Covered: what is signed, hashed or verified
by more than one party. Not covered: the masked sum itself (``secagg``) and privacy (``dp``).
"""

from federation.adapter.encoding import adapter_sha256, decode_adapter, encode_adapter
from federation.adapter.layout import Layout, TensorSpec
from federation.aggregate import FIRST_ROUND, Aggregator, make_aggregator
from federation.chain.record import (
    AdapterRecord,
    Place,
    RecordKind,
    RoundResult,
    position_of,
    verify_chain,
)
from federation.chain.sums import (
    agreement,
    encode_sum,
    heterogeneity,
    metrics_layout,
    success_ratios,
    sum_sha256,
)
from federation.chain.task import RoundTask
from federation.chain.verify import verify_update
from federation.errors import (
    AdapterError,
    ChainError,
    FederationError,
    LayoutError,
    PlanError,
    UpdateError,
)
from federation.forecast.forecast import Forecast, forecast_plan, shared_dimension
from federation.plan.plan import Plan, plan_sha256

__all__ = [
    "FIRST_ROUND",
    "AdapterError",
    "AdapterRecord",
    "Aggregator",
    "ChainError",
    "FederationError",
    "Forecast",
    "Layout",
    "LayoutError",
    "Place",
    "Plan",
    "PlanError",
    "RecordKind",
    "RoundResult",
    "RoundTask",
    "TensorSpec",
    "UpdateError",
    "adapter_sha256",
    "agreement",
    "decode_adapter",
    "encode_adapter",
    "encode_sum",
    "forecast_plan",
    "heterogeneity",
    "make_aggregator",
    "metrics_layout",
    "plan_sha256",
    "position_of",
    "shared_dimension",
    "success_ratios",
    "sum_sha256",
    "verify_chain",
    "verify_update",
]
