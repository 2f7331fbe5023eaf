"""What a command costs before it answers, and what a silo's daemon holds while it does nothing.

A real federation on the loopback interface: a coordinator, three silos that joined, a published
roster, one run that was aborted, one silo's daemon without a round. Each command is a process of
its own, run as an operator runs it, and counted by the kernel: CPU time (user and system, of all
its threads) and the most memory it held. CPU time, because a machine that does other things besides
makes a command wait and hardly makes it compute; the least of several, because of caches.

- ``pass`` and ``grpc, pydantic`` are the references: Python alone, and Python with the two packages
  that every command needs which asks the coordinator. Milliseconds of two machines do not compare,
  and multiples of the second reference nearly do;
- a command that asks the coordinator answers with what is there; nothing is left out but the wait;
- the idle daemon has polled its coordinator and was given nothing: resident memory in all, and the
  part that is its own (anonymous, which no other process shares).

``--against DIR`` runs the commands of another checkout between those of this one, in the same
environment and on the same data, and says how many times theirs ours take.

Prints a table and, as its last line, the figures as JSON. Exit code 1 if the idle daemon has a
learning framework's libraries mapped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from federation.adapter.encoding import encode_adapter
from lab.loopback import LoopbackFederation

ROOT: Final = Path(__file__).resolve().parents[1]
EXAMPLE: Final = ROOT / "deploy" / "examples" / "plan-constant.toml"
RANK: Final = 8
"""Of that plan."""
SILOS: Final = ("silo-a", "silo-b", "silo-c")
FRAMEWORKS: Final = ("torch", "transformers", "peft", "vllm", "gymnasium", "scipy")
REFERENCES: Final = {"pass": "pass", "grpc, pydantic": "import grpc, pydantic"}
RELATIVE_TO: Final = "grpc, pydantic"
CHORALE, COORDINATOR = "server.cli.main", "server.cli.coordinator"
SILO, LAB = "silo_agent.cli.main", "lab.cli.main"
COMMANDS: Final = (
    ("chorale --help", CHORALE, "--help"),
    ("chorale --version", CHORALE, "--version"),
    ("chorale-coordinator --help", COORDINATOR, "--help"),
    ("chorale-silo --help", SILO, "--help"),
    ("chorale-silo --version", SILO, "--version"),
    ("chorale-lab --help", LAB, "--help"),
    ("chorale run list", CHORALE, "run list --data COORDINATOR"),
    ("chorale silo list", CHORALE, "silo list --data COORDINATOR"),
    ("chorale run watch", CHORALE, "run watch RUN --data COORDINATOR"),
    ("chorale plan new", CHORALE, "plan new --silos 3 --episodes 80 --epsilon 8"),
    ("chorale run plan", CHORALE, "run plan EXAMPLE --dimension 10000 --data COORDINATOR"),
    ("chorale-silo status", SILO, "status --data SILO"),
    ("chorale-silo budget", SILO, "budget --data SILO"),
    ("chorale-silo runs", SILO, "runs --data SILO"),
    ("chorale-silo policy check", SILO, "policy check PLAN --data SILO"),
)
"""As operators write them, the module that the program runs, and its arguments."""
_VERDICTS: Final = frozenset({0, 1})
"""A run that was aborted and a plan that is refused end with 1, and are answers."""
_PATIENCE_S: Final = 300.0
_LAUNCHER: Final = """\
import json, os, sys
away = os.open(os.devnull, os.O_WRONLY)
said = [(os.POSIX_SPAWN_DUP2, away, 1)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=said)
_, status, used = os.wait4(pid, 0)
cpu_s = used.ru_utime + used.ru_stime
print(json.dumps([os.waitstatus_to_exitcode(status), cpu_s, used.ru_maxrss]))
"""
"""Starts a command. A process's greatest size includes that of who started it, so this is small."""


@dataclass(kw_only=True, slots=True)
class Cost:
    """The least that a command took so far."""

    cpu_ms: float = float("inf")
    rss_mib: float = float("inf")

    def take(self, cpu_ms: float, rss_mib: float) -> None:
        """Note one more run."""
        self.cpu_ms, self.rss_mib = min(self.cpu_ms, cpu_ms), min(self.rss_mib, rss_mib)


def measured(arguments: list[str], checkout: Path) -> tuple[float, float]:
    """CPU milliseconds and most resident MiB of one process."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout}:{checkout / 'proto'}"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, sys.executable, *arguments],
        cwd=checkout,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    code, cpu_s, rss_kib = json.loads(done.stdout.splitlines()[-1])
    if code not in _VERDICTS:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return cpu_s * 1e3, rss_kib / 1024


def prepare(federation: LoopbackFederation) -> dict[str, str]:
    """Found it, start and abort a run, and say what the commands call everything."""
    federation.found()
    federation.start_coordinator()
    for silo_id in SILOS:
        federation.enrol(silo_id)
    federation.publish_roster()
    adapter = federation.directory / "initial.safetensors"
    name = "base_model.model.layers.0.proj"
    adapter.write_bytes(
        encode_adapter(
            {
                f"{name}.lora_A.weight": np.ones((RANK, 64), np.float32),
                f"{name}.lora_B.weight": np.zeros((64, RANK), np.float32),
            }
        )
    )
    data = ("--data", str(federation.data_dir))
    run_id = federation.start_run(EXAMPLE, adapter, token="start")  # noqa: S106  # no password
    federation.chorale("run", "abort", run_id, *data)
    plan = federation.directory / "plan.toml"
    sizes = ("--silos", "3", "--episodes", "80", "--epsilon", "8")
    federation.chorale("plan", "new", *sizes, "--out", str(plan))
    silo = federation.silo_dir(SILOS[0])
    federation.silo("policy", "init", "--plan", str(plan), "--data", str(silo))
    return {
        "COORDINATOR": str(federation.data_dir),
        "SILO": str(silo),
        "PLAN": str(plan),
        "RUN": run_id,
        "EXAMPLE": str(EXAMPLE),
    }


def costs(
    named: Mapping[str, str], checkouts: Mapping[str, Path], repeats: int
) -> dict[tuple[str, str], Cost]:
    """The cost of each reference and of each command of each checkout, all in turn."""
    found: dict[tuple[str, str], Cost] = {}
    for _ in range(repeats):
        for name, code in REFERENCES.items():
            found.setdefault((name, ""), Cost()).take(*measured(["-c", code], ROOT))
        for name, module, words in COMMANDS:
            arguments = ["-m", module, *(named.get(word, word) for word in words.split())]
            for which, checkout in checkouts.items():
                found.setdefault((name, which), Cost()).take(*measured(arguments, checkout))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """A daemon that was given nothing to do."""

    rss_mib: float
    anonymous_mib: float
    """Its own; the rest are files, which processes share."""
    frameworks: tuple[str, ...]
    """Whose libraries it has mapped."""


def idle_memory(federation: LoopbackFederation, settle_s: float) -> Idle:
    """Start a daemon, wait until its coordinator answered, and look at it."""
    silo_id = SILOS[0]
    federation.start_silo(silo_id)
    give_up_at = time.monotonic() + _PATIENCE_S
    while not _was_answered(federation, silo_id):
        if time.monotonic() > give_up_at:
            raise SystemExit(f"the silo was not answered:\n{federation.log(silo_id)[-2000:]}")
        time.sleep(0.5)
    time.sleep(settle_s)
    pid = federation.pid(silo_id)
    held = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in {"VmRSS", "RssAnon"}:
            held[name] = round(int(value.split()[0]) / 1024, 1)
    maps = Path(f"/proc/{pid}/maps").read_text()
    return Idle(
        rss_mib=held["VmRSS"],
        anonymous_mib=held["RssAnon"],
        frameworks=tuple(name for name in FRAMEWORKS if f"/{name}/" in maps),
    )


def _was_answered(federation: LoopbackFederation, silo_id: str) -> bool:
    if not federation.alive(silo_id):
        raise SystemExit(f"the silo stopped:\n{federation.log(silo_id)[-2000:]}")
    try:
        shown = federation.metrics(silo_id)
    except OSError:
        return False
    return shown.get("chorale_silo_coordinator_contact_timestamp_seconds", 0.0) > 0.0


def show(found: Mapping[tuple[str, str], Cost], *, against: bool) -> None:
    """Print the table."""
    unit = found[RELATIVE_TO, ""].cpu_ms
    print(f"{'':28}{'CPU':>9}{'of reference':>14}{'most memory':>13}{'   of the other' * against}")
    for (name, which), cost in found.items():
        if which == "against":
            continue
        line = f"{name:28}{cost.cpu_ms:6.0f} ms{cost.cpu_ms / unit:14.2f}{cost.rss_mib:9.0f} MiB"
        other = found.get((name, "against"))
        if other is not None:
            line += f"   of {other.cpu_ms:5.0f} ms: {cost.cpu_ms / other.cpu_ms:.2f}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--settle-s", type=float, default=20.0)
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    options = parser.parse_args()
    checkouts = {"": ROOT}
    if options.against is not None:
        checkouts["against"] = options.against.resolve()
    with (
        tempfile.TemporaryDirectory() as directory,
        LoopbackFederation(directory=Path(directory)) as federation,
    ):
        named = prepare(federation)
        idle = idle_memory(federation, options.settle_s)
        found = costs(named, checkouts, options.repeats)
    show(found, against=options.against is not None)
    print(
        f"an idle silo's daemon: {idle.rss_mib} MiB resident, {idle.anonymous_mib} MiB of it its "
        f"own; learning frameworks: {', '.join(idle.frameworks) or 'none'}"
    )
    unit = found[RELATIVE_TO, ""].cpu_ms
    figures = {
        "reference_cpu_ms": round(unit, 1),
        "commands": {
            name: {
                "cpu_ms": round(cost.cpu_ms, 1),
                "of_reference": round(cost.cpu_ms / unit, 2),
                "rss_mib": round(cost.rss_mib, 1),
                **(
                    {"of_other": round(cost.cpu_ms / found[name, "against"].cpu_ms, 3)}
                    if (name, "against") in found
                    else {}
                ),
            }
            for (name, which), cost in found.items()
            if which != "against"
        },
        "idle_silo": asdict(idle),
    }
    print(json.dumps(figures))
    sys.exit(1 if idle.frameworks else 0)


if __name__ == "__main__":
    main()
