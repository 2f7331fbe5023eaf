"""One masked round of two hundred silos between real processes: is the sum exact, at what cost?

A real coordinator over mutual TLS, and the real daemons of 200 silos, ten to a process, each with
keys, ledger, audit log and channel of its own. The change that each contributes is known (the
``constant`` method), d = 1,000,000. A tenth of the silos dies with SIGKILL where it would upload,
after its keys and shares are out: the hard case, whose masks the survivors must help to remove.

- exact: the published adapter is, bit for bit, the start plus the mean of the survivors'
  fixed-point vectors; another set of silos gives another sum, for every silo's part is a
  multiple of its own;
- the coordinator's peak of resident memory, which must stay below 500 MiB;
- what each phase took, by the coordinator's own ``/metrics``. The phase in which the dead are
  waited for lasts as long as the plan's deadline; all others end when everybody has answered.

Prints a table and, as its last line, the figures as JSON. Exit code 1 if the sum is not exact, a
silo is missing that was alive, or memory is above its bound.

Covered: one machine, loopback. Not covered: networks, whose latency a phase has at least twice, and
silos that train.
"""

from __future__ import annotations

import os

# 201 parties on few cores: a pool of threads in each would only get into the others' way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from coordinator_idle import invites, until

from evolution.methods.constant import constant_pattern
from federation.adapter.encoding import decode_adapter, encode_adapter
from lab.loopback import LoopbackFederation
from silo_agent.config import SiloConfig
from silo_agent.daemon.daemon import Daemon
from silo_agent.identity.join import join
from silo_agent.line.transport import Coordinator
from silo_agent.policy.document import NO_PRIVACY

RANK, CLIP, GRID = 4, 16.0, 2**20
UNIT = 2.0**-15
"""The part of silo k is k + 1 of these. The clip cuts none; two sets have one sum by accident."""
BOUND_MIB = 500.0
NO_MODEL = "0" * 64

PLAN = """\
name = "many-silos"
[model]
base = "none"
base_sha256 = "{model}"
dtype = "float32"
lora_rank = {rank}
[evolve]
method = "constant"
episodes_per_round = 64
[privacy]
mode = "none"
clip_l2 = {clip}
grid = {grid}
noise_multiplier = 0.0
metrics_noise_multiplier = 0.0
delta = 1e-5
epsilon_cap = 1e9
exact_figures = true
[secure_aggregation]
n_min = {quorum}
[rounds]
count = 1
ready_deadline_s = {deadline}
phase_deadline_s = {deadline}
quorum = {quorum}
[aggregation]
method = "fedavg"
[evaluate]
held_out = 0
"""
SILO = """\
environments = []
evaluate = false
probes_listen = "127.0.0.1:0"
[constant]
value = {value!r}
family = "constant"
episodes = 64
successes = 8
"""
POLICY = f"""\
[models]
allowed = ["{NO_MODEL}"]
[environments]
allowed = []
[methods]
evolvers = ["constant"]
aggregation = ["fedavg"]
[privacy]
modes = ["none"]
accept_no_privacy = "{NO_PRIVACY}"
allow_exact_figures = true
after_none = true
max_epsilon_per_run = "unlimited"
max_clip_l2 = 1000.0
epsilon_caps = {{ silo = 1e9 }}
delta = 1e-5
[limits]
max_rounds = 1
max_episodes_per_round = 64
max_dimension = 100000000
max_attempts_per_day = 10
"""


def name_of(number: int) -> str:
    return f"silo-{number:03d}"


def initial_tensors(dimension: int) -> dict[str, np.ndarray]:
    width = dimension // (2 * RANK)
    prefix = "base_model.model.layers.0.proj"
    a = np.random.default_rng(5).normal(size=(RANK, width)).astype(np.float32)
    return {
        f"{prefix}.lora_A.weight": a,
        f"{prefix}.lora_B.weight": np.zeros((width, RANK), np.float32),
    }


def flat(tensors: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


# A process of ten silos ---------------------------------------------------------------------------


def host(directories: Sequence[str], *, dies: bool) -> None:
    """Run the daemons of these silos until SIGTERM, or until the first of them would upload."""
    if dies:

        def die(*_arguments: object, **_more: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        Coordinator.upload = die  # type: ignore[method-assign]
    daemons = [Daemon(SiloConfig.load(Path(directory))) for directory in directories]

    def stop(_signal: int, _frame: FrameType | None) -> None:
        for daemon in daemons:
            daemon.stopping.set()

    signal.signal(signal.SIGTERM, stop)
    threads = [threading.Thread(target=daemon.serve) for daemon in daemons]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for daemon in daemons:
        daemon.close()


# The whole ----------------------------------------------------------------------------------------


def enrol(federation: LoopbackFederation, count: int) -> None:
    """Invite, join and configure so many silos."""
    for number, invite in enumerate(invites(federation, count)):
        directory = federation.silo_dir(name_of(number))
        join(invite, directory)
        (directory / "silo.toml").write_text(SILO.format(value=(number + 1) * UNIT))
        (directory / "policy.toml").write_text(POLICY)


def start_hosts(
    federation: LoopbackFederation, count: int, *, each: int, dead: int
) -> list[subprocess.Popen[bytes]]:
    """Processes of ``each`` silos; the first ``dead`` silos are in those that die."""
    hosts = []
    logs = federation.directory / "logs"
    for first in range(0, count, each):
        last = min(first + each, count)
        command = [sys.executable, __file__, "--host"] + ["--dies"] * (first < dead)
        directories = [str(federation.silo_dir(name_of(k))) for k in range(first, last)]
        with (logs / f"{name_of(first)}.log").open("wb") as sink:
            hosts.append(
                subprocess.Popen(
                    [*command, *directories],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                )
            )
    return hosts


def memory_mib(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"process {pid} has no {field}")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_exact(federation: LoopbackFederation, record: dict[str, Any], dimension: int) -> bool:
    """Whether the adapter is the start and the mean of those who are said to be in it."""
    wanted = record["run"]["adapter_sha256"]
    (encoded,) = (
        data
        for path in (federation.data_dir / "adapters").rglob("*")
        if path.is_file() and hashlib.sha256(data := path.read_bytes()).hexdigest() == wanted
    )
    survivors = record["survivors"]
    total = sum(
        np.rint(
            constant_pattern((int(name[-3:]) + 1) * UNIT, dimension).astype(np.float64)
            * (GRID / CLIP)
        ).astype(np.int64)
        for name in survivors
    )
    mean = np.asarray(total, np.float64) / ((GRID / CLIP) * len(survivors))
    expected = (flat(initial_tensors(dimension)).astype(np.float64) + mean).astype(np.float32)
    return np.array_equal(flat(decode_adapter(encoded, max_bytes=1 << 30)), expected)


def phases(federation: LoopbackFederation) -> dict[str, float]:
    """Seconds of each phase that there was, in order."""
    prefix, suffix = 'chorale_round_phase_duration_seconds_sum{phase="', '"}'
    return {
        name[len(prefix) : -len(suffix)]: round(value, 2)
        for name, value in federation.metrics("coordinator").items()
        if name.startswith(prefix) and value
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--silos", type=int, default=200)
    parser.add_argument("--each", type=int, default=10, help="silos of a process")
    parser.add_argument("--dead", type=int, default=20, help="silos that die before they upload")
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--colluding", type=int, default=0, help="default: a third")
    parser.add_argument("--deadline", type=int, default=240, help="seconds of a phase")
    parser.add_argument("--keep", type=Path, help="work in this directory, and leave it there")
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dies", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("directories", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        host(options.directories, dies=options.dies)
        return
    if options.dimension % (2 * RANK) or options.dead % options.each:
        parser.error(f"d is a multiple of {2 * RANK}, and the dead fill whole processes")
    directory = options.keep or Path(tempfile.mkdtemp(prefix="many-silos-"))
    try:
        figures = measure(directory, options)
    finally:
        if options.keep is None:
            shutil.rmtree(directory)
    show(figures, options.each)
    print(json.dumps(figures))
    sys.exit(0 if figures["met"] else 1)


def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Found, enrol, run one round, look."""
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {what}", file=sys.stderr, flush=True)

    with LoopbackFederation(directory=directory, federation="many") as federation:
        federation.found()
        federation.start_coordinator()
        enrol(federation, options.silos)
        federation.publish_roster(colluding=options.colluding or options.silos // 3)
        say(f"{options.silos} silos enrolled, the roster signed")
        plan, adapter = directory / "plan.toml", directory / "initial.safetensors"
        plan.write_text(
            PLAN.format(
                model=NO_MODEL,
                rank=RANK,
                clip=CLIP,
                grid=GRID,
                deadline=options.deadline,
                quorum=options.silos - options.dead,
            )
        )
        adapter.write_bytes(encode_adapter(initial_tensors(options.dimension)))
        hosts = start_hosts(federation, options.silos, each=options.each, dead=options.dead)
        try:
            until(lambda: heard(federation) >= options.silos, "every silo was heard")
            say("all were heard of")
            pid = federation.pid("coordinator")
            idle_mib, idle_cpu = memory_mib(pid, "VmRSS"), cpu_s(pid)
            started = time.monotonic()
            last, survivors = play(federation, plan, adapter, say)
            took = time.monotonic() - started
            peak_mib = round(memory_mib(pid, "VmHWM"), 1)
            figures = {
                "coordinator_peak_mib": peak_mib,
                "coordinator_idle_mib": round(idle_mib, 1),
                "coordinator_cpu_s": round(cpu_s(pid) - idle_cpu, 1),
                "host_peak_mib": round(
                    max(memory_mib(one.pid, "VmHWM") for one in hosts if one.poll() is None), 1
                ),
                "phases_s": phases(federation),
                "run_s": round(took, 1),
            }
        finally:
            end(hosts)
        exact = last["run"]["state"] == "finished" and is_exact(
            federation, {**last, "survivors": survivors}, options.dimension
        )
    alive = [name_of(k) for k in range(options.dead, options.silos)]
    return {
        "silos": options.silos,
        "dead": options.dead,
        "dimension": options.dimension,
        "exact": exact,
        "survivors": len(survivors),
        **figures,
        "load": round(os.getloadavg()[0], 1),
        "met": exact and survivors == alive and peak_mib < BOUND_MIB,
    }


def heard(federation: LoopbackFederation) -> int:
    """How many silos the coordinator has heard of."""
    return federation.log("coordinator").count('"event": "silo_version"')


def play(
    federation: LoopbackFederation, plan: Path, adapter: Path, say: Callable[[str], None]
) -> tuple[dict[str, Any], list[str]]:
    """Run the round; the last status, and whose parts are in the sum."""
    run_id = federation.start_run(plan, adapter, token="many")  # noqa: S106  # opens nothing
    last: dict[str, Any] = {}
    survivors: list[str] = []
    phase = ""
    for status in federation.watch(run_id):
        last = status
        for finished in status.get("finished", ()):
            survivors = finished["survivors"]
        if (now := str(status["run"].get("phase", ""))) != phase:
            phase = now
            say(f"phase {phase}")
    return last, survivors


def end(hosts: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask the processes to end, and end them."""
    for one in hosts:
        one.terminate()
    for one in hosts:
        try:
            one.wait(timeout=60)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def show(figures: dict[str, Any], each: int) -> None:
    """The table."""
    print(
        f"{figures['silos']} silos, {figures['dead']} die before they upload, "
        f"d = {figures['dimension']:,}"
    )
    exact = "yes" if figures["exact"] else "NO"
    print(f"sum exact, of {figures['survivors']} silos: {exact}")
    print(
        f"coordinator: {figures['coordinator_peak_mib']:.0f} MiB at its peak "
        f"({figures['coordinator_idle_mib']:.0f} before), {figures['coordinator_cpu_s']:.1f} CPU-s"
    )
    print(f"a process of {each} silos: {figures['host_peak_mib']:.0f} MiB at its peak")
    print(f"\n{'phase':<24} seconds")
    for name, value in figures["phases_s"].items():
        print(f"{name:<24} {value:7.1f}")
    print(f"{'the run, in all':<24} {figures['run_s']:7.1f}")


if __name__ == "__main__":
    main()
