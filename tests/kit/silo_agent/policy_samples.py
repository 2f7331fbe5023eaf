"""A plan for each mode, a policy that allows exactly it, and the descriptor that follows."""

from dataclasses import replace
from typing import Any

from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import metrics_sigma, per_silo_sigma
from federation.adapter.layout import Layout, TensorSpec
from federation.chain.sums import metrics_layout
from federation.chain.task import RoundTask
from federation.plan.families import families_of
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from secagg.descriptor import (
    NOISE_DISCRETE_GAUSSIAN,
    NOISE_NONE,
    AggregationId,
    Descriptor,
    MetricsLayout,
)
from secagg.digest_tree import SHA256
from secagg.parameters import threshold
from silo_agent.policy.document import NO_PRIVACY, Policy
from silo_agent.policy.rule import Site

NOW_UNIX_S = 1_800_000_000
"""2027-01-15 08:00 UTC."""
BASE = bytes.fromhex("ab" * 32)
NO_MODEL = ("ab" * 32, "00" * 32)
"""The change that leaves a sample without a base model."""
SITE = Site(base_sha256=BASE, environments={"craft": None, "babyai": None})
"""A silo with one of the plan's environments and one that the plan does not name."""
COHORT = ("silo-a", "silo-b", "silo-c", "silo-d")
LAYOUT = Layout((TensorSpec(name="layer.lora_A.weight", shape=(8, 16)),))

PLAN = f"""
name = "sample"
[model]
base = "small"
base_sha256 = "{BASE.hex()}"
dtype = "float32"
[evolve]
method = "fed-se"
environments = ["craft", "maze"]
episodes_per_round = 128
tries_per_task = 4
[aggregation]
method = "fedavg"
[privacy]
mode = "silo"
clip_l2 = 2.0
noise_multiplier = 4.0
metrics_noise_multiplier = 4.0
delta = 1e-5
epsilon_cap = 50.0
[secure_aggregation]
n_min = 3
[rounds]
count = 5
ready_deadline_s = 300
phase_deadline_s = 10
"""

POLICY = f"""
[models]
allowed = ["{BASE.hex()}"]
[environments]
allowed = ["craft", "maze"]
[methods]
evolvers = ["fed-se"]
aggregation = ["fedavg"]
[privacy]
modes = ["silo"]
units = ["task"]
max_epsilon_per_run = 6.0
min_noise_multiplier = 4.0
max_clip_l2 = 2.0
max_sampling_rate = 0.25
max_steps_per_run = 18
epsilon_caps = {{ silo = 50.0, task = 40.0 }}
delta = 1e-5
[cohort]
min_silos = 4
min_threshold = 3
min_survivors = 3
min_colluding = 1
partners = ["silo-b", "silo-c", "silo-d"]
[schedule]
hours_utc = "07:30-08:30"
[limits]
max_rounds = 5
max_episodes_per_round = 128
max_dimension = 128
max_attempts_per_round = 2
max_attempts_per_day = 60
"""

NO_NOISE = (
    ("\nnoise_multiplier = 4.0", "\nnoise_multiplier = 0.0"),
    ("metrics_noise_multiplier = 4.0", "metrics_noise_multiplier = 0.0"),
)
RECORD = """
[privacy.record]
sampling_rate = 0.25
expected_units = 16
steps_per_round = 3
"""
IN_TIME = ("phase_deadline_s = 10", "ready_after_s = 30\nphase_deadline_s = 10")
STEPS_IN_TIME = (IN_TIME[0], f"step_answer_after_s = 5\n{IN_TIME[1]}")
MODES: dict[str, tuple[tuple[str, str], ...]] = {
    "silo": (),
    "none": (('mode = "silo"', 'mode = "none"'), *NO_NOISE),
    "record_local": (
        ('mode = "silo"', 'mode = "record_local"'),
        ("\n[secure_aggregation]", f"{RECORD}delta_clip_l2 = 3.0\n[secure_aggregation]"),
        IN_TIME,
    ),
    "record_distributed": (
        ('mode = "silo"', 'mode = "record_distributed"'),
        ('method = "fedavg"', 'method = "fedavg"\nserver_optimiser = "sgd"'),
        ("\n[secure_aggregation]", f"{RECORD}[secure_aggregation]"),
        STEPS_IN_TIME,
    ),
}
"""Changes that make the plan one of another mode."""
ACCEPTED_NONE = (
    ('units = ["task"]', f'units = ["task"]\naccept_no_privacy = "{NO_PRIVACY}"'),
    ("[limits]", "[limits]\nmin_episodes_per_round = 128\nmin_tasks_per_round = 32"),
)
"""What the policy has to say beside the name of mode ``none``."""
OLD_SUITE = {"version": 1, "suite": 1, "families": (), "task_sha256": b"", "digest_id": 0}
"""What a descriptor of suite v1 says."""
ACCEPT_V1 = ("[cohort]", '[secure_aggregation]\nsuites = ["v1", "v2"]\naccept_v1 = true\n[cohort]')
"""What the policy has to say for it."""
EXACT = ("[secure_aggregation]", "exact_figures = true\n[secure_aggregation]")
"""Asks for figures without noise."""
ALLOW_EXACT = ("max_epsilon_per_run", "allow_exact_figures = true\nmax_epsilon_per_run")
COMPOSED = ("delta_clip_l2 = 3.0", "delta_clip_l2 = 2.0\nsilo_noise_multiplier = 4.0")
"""Adds noise for the silo to ``record_local``."""


def mode_policy(mode: str, *changes: tuple[str, str]) -> Policy:
    """The policy that allows the plan of this mode."""
    accepted = ACCEPTED_NONE if mode == "none" else ()
    return make_policy(('modes = ["silo"]', f'modes = ["{mode}"]'), *accepted, *changes)


def make_plan(*changes: tuple[str, str]) -> Plan:
    return read_plan(edited(PLAN, *changes).encode())


def make_policy(*changes: tuple[str, str]) -> Policy:
    return Policy.parse(edited(POLICY, *changes).encode())


def edited(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def make_task(**changes: Any) -> RoundTask:
    task = RoundTask(
        run_id="run-1",
        round=2,
        plan_sha256=bytes([1]) * 32,
        roster_sha256=bytes([2]) * 32,
        roster_epoch=1,
        base_model_sha256=BASE,
        adapter_sha256=bytes([3]) * 32,
        ready_deadline_unix_s=NOW_UNIX_S + 300,
        invited=COHORT,
    )
    return replace(task, **changes)


def make_descriptor(plan: Plan, **changes: Any) -> Descriptor:
    """What an honest coordinator makes of the plan, with some fields replaced."""
    spec = plan.spec
    release = spec.release
    t, c, n_min = threshold(len(COHORT), 1), 1, plan.secure_aggregation.n_min
    declared = dict.fromkeys(COHORT, ("craft", "maze"))
    names, bounds = metrics_layout(plan, declared, t=t, n_min=n_min)
    block = MetricsBlock.of(names, bounds)
    descriptor = Descriptor(
        version=2,
        suite=2,
        identity=AggregationId(run_id="run-1", round=2, step=0, part=0, attempt=1),
        roster_sha256=bytes([2]) * 32,
        roster_epoch=1,
        cohort=COHORT,
        colluding=c,
        threshold=t,
        n_min=n_min,
        plan_sha256=bytes([1]) * 32,
        base_model_sha256=BASE,
        adapter_sha256=bytes([3]) * 32,
        layout_sha256=LAYOUT.sha256,
        dimension=LAYOUT.dimension,
        unit_clip=release.clip_l2,
        vector_clip=release.clip_l2,
        max_units=release.max_units,
        scale=Grid(clip_l2=release.clip_l2, steps=release.grid, dimension=LAYOUT.dimension).scale,
        metrics=MetricsLayout(
            names=block.names,
            bounds=block.bounds,
            grid=block.grid,
            sigma=metrics_sigma(
                spec, block, tries=plan.evolve.tries_per_task, t=t, n_min=n_min, c=c
            ),
        ),
        ring_bits=32,
        noise_mechanism=NOISE_DISCRETE_GAUSSIAN if release.noise_multiplier else NOISE_NONE,
        noise_sigma=per_silo_sigma(release.noise_multiplier, release.grid, t, n_min, c),
        privacy_spec_sha256=spec.sha256(),
        deadlines_unix_s=tuple(NOW_UNIX_S + 10 * step for step in range(1, 6)),
        families=families_of(plan),
        task_sha256=make_task().sha256,
        digest_id=SHA256,
    )
    return replace(descriptor, **changes)
