"""A federation of real processes whose silos contribute known vectors.

Silo k uploads ±2^-k·(1 + (j mod 8)/8): every value is a power-of-two pattern of its own, so a lost,
doubled or swapped silo is visible in the sum.
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from evolution.methods.constant import constant_pattern
from federation.adapter.encoding import decode_adapter, encode_adapter
from lab.loopback import LoopbackFederation
from silo_agent.policy.document import NO_PRIVACY
from tests.kit.waiting import until

SILOS = ("silo-a", "silo-b", "silo-c", "silo-d")
FIVE = (*SILOS, "silo-e")
VALUES = {silo: 2.0 ** -(k + 3) for k, silo in enumerate(FIVE)}
UNITS = 16
"""Units of each silo in ``record_distributed``."""
RANK, WIDTH = 4, 96
CLIP, GRID = 16.0, 2**20
NO_MODEL = "0" * 64
ACCEPTED = f"""\
accept_no_privacy = "{NO_PRIVACY}"
allow_exact_figures = true
after_none = true
"""
"""Of a policy that lists mode ``none``."""
ACCEPTED_V1 = """\
[secure_aggregation]
suites = ["v1", "v2"]
accept_v1 = true
"""
PORTS = ("port", "enrol_port", "probes_port")
TEMPLATES: list[Path] = []
"""The folder that all workers of a run of the tests share; tests/conftest.py puts it here."""


def initial_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    tensors = {}
    for layer in range(2):
        prefix = f"base_model.model.layers.{layer}.proj"
        a = rng.normal(size=(RANK, WIDTH)).astype(np.float32)
        tensors[f"{prefix}.lora_A.weight"] = a
        tensors[f"{prefix}.lora_B.weight"] = np.zeros((WIDTH, RANK), np.float32)
    return tensors


DIMENSION = sum(t.size for t in initial_tensors().values())


def plan_toml(
    *,
    rounds: int = 1,
    mode: str = "none",
    noise: float = 0.0,
    epsilon_cap: float = 1e9,
    phase_deadline_s: int = 6,
    extra: str = "",
    method: str = "fedavg",
    gauge: bool = False,
    optimiser: str = "fedavg",
    exact_figures: bool = True,
    ready_after_s: int = 0,
) -> str:
    """A plan; without noise its figures are exact, so that a test can tell them to the last bit.

    No round is shorter than ``ready_after_s``: for a test that does something in the middle of a
    run, which on a fast machine would be over.
    """
    exact = f"exact_figures = {str(exact_figures).lower()}" if mode == "none" else ""
    if mode.startswith("record"):
        # A second is long for what these silos do, and short for a test.
        ready_after_s = max(1, ready_after_s)
    steps = "step_answer_after_s = 1" if mode == "record_distributed" else ""
    return f"""\
name = "protocol"
[model]
base = "none"
base_sha256 = "{NO_MODEL}"
dtype = "float32"
lora_rank = {RANK}
[evolve]
method = "constant"
episodes_per_round = 64
[aggregation]
method = "{method}"
gauge = {str(gauge).lower()}
server_optimiser = "{optimiser}"
[privacy]
mode = "{mode}"
clip_l2 = {CLIP}
grid = {GRID}
noise_multiplier = {noise}
metrics_noise_multiplier = {noise}
delta = 1e-5
epsilon_cap = {epsilon_cap}
{exact}
accept_low_cosine = true
[secure_aggregation]
n_min = 3
[rounds]
count = {rounds}
ready_deadline_s = 60
ready_after_s = {ready_after_s}
{steps}
phase_deadline_s = {phase_deadline_s}
quorum = 3
[evaluate]
held_out = 0
{extra}
"""


def silo_toml(silo_id: str, value: str | float | None = None) -> str:
    shown = VALUES[silo_id] if value is None else value
    text = f'"{shown}"' if isinstance(shown, str) else repr(shown)
    return f"""\
environments = []
evaluate = false
probes_listen = "127.0.0.1:0"
[constant]
value = {text}
family = "constant"
episodes = 64
successes = {8 * (1 + FIVE.index(silo_id))}
units = {UNITS}
"""


def policy_toml(
    *,
    modes: str = '["none", "silo", "record_local", "record_distributed"]',
    epsilon_cap: float = 1e9,
    task_cap: float = 1e9,
    model: str = NO_MODEL,
    v1: bool = False,
) -> str:
    """A site's policy; with ``v1`` one that takes part in runs of suite v1 as well."""
    accepted = ACCEPTED if '"none"' in modes else ""
    suites = ACCEPTED_V1 if v1 else ""
    return f"""\
{suites}[models]
allowed = ["{model}"]
[environments]
allowed = []
[methods]
evolvers = ["constant"]
aggregation = ["fedavg", "rolora"]
[privacy]
modes = {modes}
{accepted}units = ["task", "user"]
max_epsilon_per_run = "unlimited"
max_clip_l2 = 1000.0
max_sampling_rate = 1.0
max_steps_per_run = 100000
epsilon_caps = {{ silo = {epsilon_cap}, task = {task_cap}, user = 1e9 }}
delta = 1e-5
[limits]
max_rounds = 100
max_episodes_per_round = 1000
max_dimension = 10000000
max_attempts_per_round = 10
max_attempts_per_day = 10000
"""


def configure(
    loopback: LoopbackFederation,
    silo_id: str,
    *,
    value: str | float | None = None,
    policy: str | None = None,
) -> None:
    directory = loopback.silo_dir(silo_id)
    (directory / "silo.toml").write_text(silo_toml(silo_id, value))
    (directory / "policy.toml").write_text(policy or policy_toml())


def asks(loopback: LoopbackFederation, *arguments: object) -> tuple[int, dict[str, Any]]:
    """Exit code and envelope of a command of the admin."""
    done = subprocess.run(
        [*loopback.python("coordinator"), "-m", "server.cli.main", *map(str, arguments),
         "--data", loopback.data_dir, "--format", "json"],
        capture_output=True, text=True, timeout=120, check=False, env=loopback._environment(),
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout)


def let_cohorts_vary(loopback: LoopbackFederation, silos: tuple[str, ...] = SILOS) -> None:
    """Have every site say, without noise, that a silo that was lost may be in a sum again."""
    for silo_id in silos:
        file = loopback.silo_dir(silo_id) / "policy.toml"
        text = file.read_text()
        assert ACCEPTED in text
        file.write_text(text.replace(ACCEPTED, ACCEPTED + "cohort_may_vary = true\n"))


@contextmanager
def federation(
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
    silos: tuple[str, ...] = SILOS,
) -> Iterator[LoopbackFederation]:
    """Enrolled and rostered; the coordinator runs, the silos do not yet."""
    environment = environment or {}
    with LoopbackFederation(directory=directory, environment=environment) as loopback:
        if any(name.startswith("CHORALE_COORDINATOR_") for name in environment):
            _found(loopback, silos)
        else:
            _copy(_template(silos), loopback)
            loopback.start_coordinator()
        yield loopback


def _found(loopback: LoopbackFederation, silos: tuple[str, ...]) -> None:
    loopback.found()
    loopback.start_coordinator()
    for silo_id in silos:
        loopback.enrol(silo_id)
        configure(loopback, silo_id)
    loopback.publish_roster(colluding=1)


@cache
def _template(silos: tuple[str, ...]) -> LoopbackFederation:
    """Founded once for all workers, through fourteen commands, and copied for each test."""
    directory = TEMPLATES[0] / "-".join(("federation", *silos))
    ports = directory.with_suffix(".json")
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ports.exists():
            return LoopbackFederation(directory=directory, **json.loads(ports.read_text()))
        with LoopbackFederation(directory=directory) as loopback:
            _found(loopback, silos)
        ports.write_text(json.dumps({name: getattr(loopback, name) for name in PORTS}))
    return loopback


def _copy(template: LoopbackFederation, loopback: LoopbackFederation) -> None:
    """The same federation elsewhere: other directories, and ports of its own."""
    shutil.copytree(
        template.directory,
        loopback.directory,
        ignore=shutil.ignore_patterns("logs"),
        dirs_exist_ok=True,
    )
    for path in (
        loopback.data_dir / "coordinator.toml",
        *loopback.directory.glob("silos/*/identity/identity.json"),
    ):
        text = path.read_text()
        for name in PORTS:
            old, new = (f"127.0.0.1:{getattr(one, name)}" for one in (template, loopback))
            text = text.replace(f'"{old}"', f'"{new}"')
        path.write_text(text)


def await_heard(
    loopback: LoopbackFederation, silos: tuple[str, ...] = SILOS, *, since: int = 0
) -> None:
    """Wait until it heard all: it counts on nobody who is not there; ``since``: in a later log."""
    waiting = {f'"silo": "{silo_id}", "version"' for silo_id in silos}
    until(
        lambda: all(line in loopback.log("coordinator")[since:] for line in waiting),
        "the coordinator heard all",
        told=lambda: loopback.log("coordinator"),
    )


def write_run(loopback: LoopbackFederation, plan: str) -> tuple[Path, Path]:
    plan_file = loopback.directory / "plan.toml"
    plan_file.write_text(plan)
    adapter_file = loopback.directory / "initial.safetensors"
    adapter_file.write_bytes(encode_adapter(initial_tensors()))
    return plan_file, adapter_file


def watch_to_end(loopback: LoopbackFederation, run_id: str) -> tuple[dict[str, Any], list[Any]]:
    """The last status and every finished round."""
    rounds: list[Any] = []
    last: dict[str, Any] = {}
    for status in loopback.watch(run_id):
        rounds += status.get("finished", ())
        last = status
    return last, rounds


def await_adopted(
    loopback: LoopbackFederation, adapter_sha256: str, silos: tuple[str, ...] = SILOS
) -> None:
    """Wait until silos keep an adapter: they hear of it after whoever watches the run."""
    for silo_id in silos:
        kept = loopback.silo_dir(silo_id) / "adapters" / adapter_sha256
        until(kept.exists, f"{silo_id} keeps it", told=partial(loopback.log, silo_id))


def fixed_point(value: float) -> np.ndarray:
    """What a silo's vector is in grid units: plain rounding, the clip does not bite here."""
    pattern = constant_pattern(value, DIMENSION).astype(np.float64)
    assert np.linalg.norm(pattern) < CLIP * 0.9
    return np.rint(pattern * (GRID / CLIP)).astype(np.int64)


def published(loopback: LoopbackFederation, adapter_sha256: str) -> dict[str, np.ndarray]:
    matches = [
        path
        for path in (loopback.data_dir / "adapters").rglob("*")
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == adapter_sha256
    ]
    return decode_adapter(matches[0].read_bytes(), max_bytes=1 << 26)


def flat(tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])
