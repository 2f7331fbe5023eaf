"""One run through its kills: a daemon that killed itself is started again at once.

Covered: deaths that were planned. A daemon that ends in any other way, or a run that stands still,
ends the drive; what was not reached by then has not passed.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from federation.audit.lines import complete_lines
from lab.loopback import LoopbackFederation
from silo_agent.identity.identity import has_previous
from tests.kit.processes import standby
from tests.system.chaos.cells import COORDINATOR, Cell

MODULES = {COORDINATOR: "tests.system.chaos.dying_coordinator"}
SILO_MODULE = "tests.system.chaos.dying_silo"
STALLED_S = 600.0
"""Without a round's end or a death; above any phase's deadline."""
SETTLED_S = 90.0
PAUSE_S = 0.05


@dataclass(kw_only=True, slots=True)
class Kill:
    """One planned death, in a round of its own."""

    cell: Cell
    round: int
    victim: str
    """Who dies."""
    asks: str = ""
    """Who asks for a certificate in this round."""
    fell_at: float = 0.0
    """Unix time; 0 if it did not."""


@dataclass(kw_only=True, slots=True)
class Drive:
    """A federation whose daemons die as planned."""

    loopback: LoopbackFederation
    silos: tuple[str, ...]
    kills: tuple[Kill, ...]
    say: Callable[[str], None]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of every process."""
    suite: str = "v2"
    """Of the run."""
    standby: bool = False
    """Whether another coordinator waits for the one that serves to die, instead of a new start."""
    run_id: str = ""
    trouble: str = ""
    """Why the drive ended before the run did."""
    _seen: dict[str, set[str]] = field(default_factory=dict)

    def file(self, name: str, kind: str) -> Path:
        return self.loopback.directory / f"{name}.{kind}"

    def start(self, name: str) -> None:
        """Start a daemon, for the first time or again."""
        mine = [kill for kill in self.kills if kill.victim == name]
        self.loopback.environment = {
            **self.environment,
            "CHORALE_TEST_DEATHS": ",".join(f"{kill.round}:{kill.cell.instant}" for kill in mine),
            "CHORALE_TEST_DEATHS_DONE": str(self.file(name, "deaths")),
            "CHORALE_TEST_WITNESS": str(self.file(name, "witness")),
            "CHORALE_TEST_RENEW": ",".join(
                str(kill.round) for kill in self.kills if kill.asks == name
            ),
        }
        if name == COORDINATOR:
            if not self.standby or name not in self.loopback._processes:
                self.loopback.start_coordinator(module=MODULES[COORDINATOR])
            elif standby.NAME in self.loopback._processes:
                standby.promote(self.loopback)
            if self.standby:
                standby.start(self.loopback, module=MODULES[COORDINATOR])
        else:
            self.loopback.start_silo(name, module=SILO_MODULE)
        self.loopback.environment = self.environment

    def through(self, plan: Path, adapter: Path) -> None:
        """Start the silos and the run, and go on to its end."""
        for silo_id in self.silos:
            self.start(silo_id)
        self.run_id = self.loopback.start_run(plan, adapter, token="chaos", suite=self.suite)
        known, moved_at = 0, time.monotonic()
        while not self.trouble:
            fell = [name for name in (COORDINATOR, *self.silos) if not self.loopback.alive(name)]
            for name in fell:
                self._fallen(name)
            audit = self.coordinator_audit()
            events = [one["event"] for one in audit]
            if {"run_failed", "run_aborted"} & set(events):
                self.trouble = f"the run ended: {audit[-1]}"
            if "run_finished" in events:
                break
            if fell or events.count("round_finished") > known:
                known, moved_at = events.count("round_finished"), time.monotonic()
            if time.monotonic() - moved_at > STALLED_S:
                self.trouble = f"nothing moved for {STALLED_S:.0f} s after round {known}"
            time.sleep(PAUSE_S)
        if not self.trouble:
            self._settle()

    def coordinator_audit(self) -> list[dict[str, Any]]:
        return events_of(self.loopback.data_dir / "audit.jsonl")

    def _fallen(self, name: str) -> None:
        status = self.loopback._processes[name].popen.returncode
        file, before = self.file(name, "deaths"), self._seen.setdefault(name, set())
        told = file.read_text().split() if file.exists() else []
        noted = [instant for instant in told if instant not in before]
        # A standby that took over may have died, too, before anybody looked.
        at_once = 2 if self.standby and name == COORDINATOR else 1
        if status != -signal.SIGKILL or not 1 <= len(noted) <= at_once:
            log = self.loopback.log(name)[-2000:]
            self.trouble = f"{name} ended with {status} and notes {noted}:\n{log}"
            return
        instant = noted[0]
        before.add(instant)
        for kill in self.kills:
            if kill.victim == name and f"{kill.round}:{kill.cell.instant}" == instant:
                kill.fell_at = time.time()
        self.say(f"killed {name} at {instant}")
        self.start(name)

    def _settle(self) -> None:
        """Wait until every silo is at the run's end, with a certificate that is in use."""
        give_up_at = time.monotonic() + SETTLED_S
        while True:
            for name in (COORDINATOR, *self.silos):
                if not self.loopback.alive(name):
                    self._fallen(name)
            left = [silo_id for silo_id in self.silos if not self._settled(silo_id)]
            if self.trouble or not left:
                return
            if time.monotonic() > give_up_at:
                self.trouble = f"{left} did not come to the run's end"
            time.sleep(PAUSE_S)

    def _settled(self, silo_id: str) -> bool:
        directory = self.loopback.silo_dir(silo_id)
        rounds = max((kill.round for kill in self.kills), default=0)
        heads = json.loads((directory / "state.json").read_text())["heads"]
        events = events_of(directory / "audit.jsonl")
        asked = sum(kill.asks == silo_id for kill in self.kills)
        renewed = sum(one["event"] == "certificate_renewed" for one in events)
        return (
            heads.get(self.run_id, {}).get("round", 0) >= rounds
            and renewed >= asked
            and not has_previous(directory)
            and not list((directory / "spool").glob("*.spool"))
        )


def events_of(file: Path) -> list[dict[str, Any]]:
    """The acknowledged records of an audit log, unchecked."""
    return [json.loads(line) for line in complete_lines(file.read_bytes())]
