"""A loopback federation whose parties run different versions, over mutual TLS as always.

Silos contribute the known vectors of ``tests/kit/processes/constant_federation.py``, so a sum that
a silo of another version got wrong by one grid unit is seen.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab.loopback import LoopbackFederation
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until
from tests.system.upgrade.installations import Installation

EXACT = {
    "mode": "record_local",
    "noise": 2.0,
    "extra": "[privacy.record]\nsampling_rate = 0.5\nexpected_units = 8\nsteps_per_round = 4\n"
    f"delta_clip_l2 = {cf.CLIP}\n",
}
"""The constant vector needs no noisy steps and its sum has no noise: it can be told to the bit."""
POLICY = cf.policy_toml(modes='["silo", "record_local", "record_distributed"]')
"""Without mode ``none``, in which the previous release takes no part: it does not know the keys."""
POLICY_V1 = POLICY + cf.ACCEPTED_V1
"""Of a silo of this version that goes on with silos of the previous release."""


@dataclass(kw_only=True, slots=True)
class MixedFederation(LoopbackFederation):
    """Each party's processes and commands are those of its own installation."""

    installations: dict[str, Installation] = field(default_factory=dict)

    def python(self, party: str) -> tuple[str, ...]:
        return self.installations[party].python

    def _environment(self) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CHORALE"))}
        # A silo of the previous release cannot say beforehand what it would do.
        own["CHORALE_WITHOUT_PREFLIGHT"] = "1"
        return {**own, "OMP_NUM_THREADS": "1", **self.environment}

    def enrol(self, silo_id: str, *, base_model: Path | None = None) -> None:
        assert base_model is None
        # 0.1.0 has one federation and does not ask for its name.
        named = () if self.installations["coordinator"].version == "0.1.0" else (self.federation,)
        made = self.chorale("invite", *named, silo_id, "--data", str(self.data_dir))
        self.silo("join", made["invite"], "--data", str(self.silo_dir(silo_id)))

    def events(self, name: str) -> list[dict[str, Any]]:
        """A daemon's log, line by line."""
        lines = self.log(name).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def said(self, name: str, event: str) -> list[dict[str, Any]]:
        """Every line of a daemon's log about one event."""
        return [line for line in self.events(name) if line["event"] == event]


def policy_of(installation: Installation) -> str:
    """The previous release does not know the suites' keys, and this one wants them said."""
    return POLICY if installation.version == "0.1.0" else POLICY_V1


@contextmanager
def founded(
    directory: Path, *, coordinator: Installation, silos: Mapping[str, Installation]
) -> Iterator[MixedFederation]:
    """Founded, enrolled and rostered by these installations; only the coordinator runs."""
    installations = {"coordinator": coordinator, **silos}
    with MixedFederation(directory=directory, installations=installations) as loopback:
        loopback.found()
        loopback.start_coordinator()
        for silo_id in silos:
            loopback.enrol(silo_id)
            cf.configure(loopback, silo_id, policy=policy_of(silos[silo_id]))
        if silos:
            loopback.publish_roster(colluding=1)
        yield loopback


@contextmanager
def copied(
    directory: Path, source: MixedFederation, *, coordinator: Installation, **silos: Installation
) -> Iterator[MixedFederation]:
    """The directories of a federation that was stopped, at its ports, taken over by these."""
    shutil.copytree(source.directory, directory, dirs_exist_ok=True)
    with MixedFederation(
        directory=directory,
        installations={"coordinator": coordinator, **silos},
        port=source.port,
        enrol_port=source.enrol_port,
        probes_port=source.probes_port,
    ) as loopback:
        loopback.start_coordinator()
        yield loopback


def start_silos(loopback: MixedFederation, silos: Iterable[str], what: str) -> None:
    """Start daemons, say what runs, and wait until the coordinator has heard of each."""
    shown = ", ".join(f"{party} {one.version}" for party, one in loopback.installations.items())
    print(f"\n{what}: {shown}")
    for silo_id in silos:
        loopback.start_silo(silo_id)
    for silo_id in silos:
        until(lambda silo_id=silo_id: heard(loopback, silo_id), f"{silo_id} does not call")


def heard(loopback: MixedFederation, silo_id: str) -> bool:
    key = f'chorale_silo_last_seen_timestamp_seconds{{silo="{silo_id}"}}'
    return loopback.metrics("coordinator").get(key, 0.0) > 0


def require_exact(
    loopback: MixedFederation, rounds: list[Any], before: np.ndarray, silos: tuple[str, ...]
) -> np.ndarray:
    """Bit for bit, every round's adapter is the one before plus the mean of these silos."""
    total = sum(cf.fixed_point(cf.VALUES[silo]) for silo in silos)
    mean = total.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(silos))
    for one in rounds:
        assert sorted(one["survivors"]) == sorted(silos), one
        after = cf.flat(cf.published(loopback, one["adapter_sha256"]))
        expected = (before.astype(np.float64) + mean).astype(np.float32)
        np.testing.assert_array_equal(after, expected)
        before = after
    return before
