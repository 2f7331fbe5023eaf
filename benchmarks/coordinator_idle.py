"""What a coordinator costs while it does nothing: its start, and its memory with silos connected.

A real coordinator process over mutual TLS. 50 silos join with keys of their own, and stay connected
from one other process: each has its channel and asks as the daemon does. Nothing else is a silo's:
no run is under way.

- cold start: from starting the process until ``/readyz`` says ready, for as many starts as asked;
  the minimum is what the coordinator takes, the others what the machine did besides;
- resident memory once all silos have been heard of twice, from ``chorale``'s own ``/metrics`` and
  from ``/proc``;
- what is loaded: nothing of a learning framework.

Prints a table and, as its last line, the figures as JSON. Exit code 1 if a bound is missed: 2 s,
200 MiB, no framework.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from chorale.v1 import admin_pb2
from lab.loopback import LoopbackFederation
from server.cli.client import connect
from silo_agent.identity.join import join
from silo_agent.line.transport import Coordinator

MIB = 1 << 20
BOUND_START_S, BOUND_RSS_MIB = 2.0, 200.0
POLL_WAIT_S = 8
FRAMEWORKS = ("torch", "transformers", "peft", "vllm", "gymnasium")
PATIENCE_S = 300.0


class ConnectedSilo:
    """One silo's channel, asking for instructions as its daemon does."""

    def __init__(self, directory: Path, invite: str, stopping: threading.Event) -> None:
        identity = join(invite, directory)
        self._stopping = stopping
        self._coordinator = Coordinator(
            address=identity.coordinator_address,
            credentials=identity.channel_credentials(),
            stopping=stopping,
        )
        self.answers = 0
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        last = ""
        while not self._stopping.is_set():
            instruction = self._coordinator.poll(last, wait_s=POLL_WAIT_S)
            last = last if instruction is None else instruction.instruction_id
            self.answers += 1

    def close(self) -> None:
        """Wait for the last answer, and hang up."""
        self._thread.join(timeout=POLL_WAIT_S + 5)
        self._coordinator.close()


def cold_starts(federation: LoopbackFederation, count: int) -> list[float]:
    """Seconds from the process's start until it is ready, each time."""
    spent = []
    for _ in range(count):
        begun = time.perf_counter()
        federation.start_coordinator()
        spent.append(time.perf_counter() - begun)
        federation.stop()
    return spent


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"process {pid} has no resident memory")


def loaded_frameworks(pid: int) -> list[str]:
    """Which framework's libraries or packages the process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return [name for name in FRAMEWORKS if f"/{name}/" in maps]


def until(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"{what}: not after {PATIENCE_S:.0f} s")
        time.sleep(0.2)


def invites(federation: LoopbackFederation, count: int) -> list[str]:
    with connect(federation.data_dir) as stub:
        return [
            stub.CreateInvite(
                admin_pb2.CreateInviteRequest(
                    federation=federation.federation, silo_id=f"silo-{number:03d}", ttl_s=3600
                ),
                timeout=30,
            ).invite
            for number in range(count)
        ]


def scrape_s(federation: LoopbackFederation) -> tuple[float, int]:
    """The fastest of ten scrapes, and its size in bytes."""
    best, size = float("inf"), 0
    for _ in range(10):
        begun = time.perf_counter()
        url = f"http://127.0.0.1:{federation.probes_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            size = len(answer.read())
        best = min(best, time.perf_counter() - begun)
    return best, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--silos", type=int, default=50)
    parser.add_argument("--starts", type=int, default=7)
    options = parser.parse_args()
    stopping = threading.Event()
    with (
        tempfile.TemporaryDirectory() as directory,
        LoopbackFederation(directory=Path(directory)) as federation,
    ):
        federation.found()
        starts = cold_starts(federation, options.starts)
        federation.start_coordinator()
        pid = federation.pid("coordinator")
        empty_mib = resident_mib(pid)
        silos = [
            ConnectedSilo(Path(directory) / "joined" / f"{number}", invite, stopping)
            for number, invite in enumerate(invites(federation, options.silos))
        ]
        try:
            until(lambda: all(silo.answers >= 2 for silo in silos), "every silo answered twice")
            connected_mib = resident_mib(pid)
            shown = federation.metrics("coordinator")
            frameworks = loaded_frameworks(pid)
            scrape, scrape_bytes = scrape_s(federation)
        finally:
            stopping.set()
            for silo in silos:
                silo.close()
    figures = {
        "cold_start_s": round(min(starts), 3),
        "cold_start_median_s": round(sorted(starts)[len(starts) // 2], 3),
        "rss_mib": round(connected_mib, 1),
        "rss_mib_without_silos": round(empty_mib, 1),
        "silos": int(sum(shown[f'chorale_silos{{state="{s}"}}'] for s in ("enrolled", "rostered"))),
        "scrape_ms": round(scrape * 1e3, 1),
        "scrape_bytes": scrape_bytes,
        "frameworks": frameworks,
    }
    shown_mib = shown["process_resident_memory_bytes"] / MIB
    print(
        f"cold start to ready, {len(starts)} starts   min {min(starts):.2f} s, "
        f"median {figures['cold_start_median_s']:.2f} s, max {max(starts):.2f} s"
    )
    print(f"resident, no silo                   {empty_mib:.1f} MiB")
    print(
        f"resident, {figures['silos']} silos connected       {connected_mib:.1f} MiB "
        f"(/metrics says {shown_mib:.1f})"
    )
    print(f"a scrape                            {scrape * 1e3:.1f} ms, {scrape_bytes} bytes")
    print(f"learning frameworks in the process  {', '.join(frameworks) or 'none'}")
    print(json.dumps(figures))
    good = min(starts) < BOUND_START_S and connected_mib < BOUND_RSS_MIB and not frameworks
    sys.exit(0 if good and figures["silos"] == options.silos else 1)


if __name__ == "__main__":
    main()
