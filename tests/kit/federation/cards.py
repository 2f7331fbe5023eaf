"""A model card that says everything."""

import math

from dp.accounting.compose import Epsilon
from dp.config import Mode, PrivacySpec
from federation.adapter.card import FamilySuccess, ModelCard

HEX = "0123456789abcdef" * 4
SILO = PrivacySpec(
    mode=Mode.SILO, unit="task", clip_l2=1.0, noise_multiplier=1.0, delta=1e-5, epsilon_cap=8.0,
    metrics_noise_multiplier=1.0, grid=2**20,
)  # fmt: skip
CARD = ModelCard(
    federation="clinics", run_id="run-1", run_name="shards", round=7, step=0, silos=9,
    base="Qwen/Qwen2.5-7B-Instruct", base_sha256="b" + HEX[1:], adapter_sha256="a" + HEX[1:],
    plan_sha256="c" + HEX[1:], record_sha256="d" + HEX[1:], head_sha256="e" + HEX[1:], rank=8,
    alpha=16.0, target="all-linear", privacy=SILO, releases=8, epsilon={"silo": Epsilon(5.4321)},
    success=(
        FamilySuccess(round=6, family="craft", ratio=0.5, standard_error=0.01),
        FamilySuccess(round=7, family="craft", ratio=math.nan, standard_error=math.inf),
    ),
)  # fmt: skip
