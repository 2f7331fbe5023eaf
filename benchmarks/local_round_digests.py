"""What local rounds come to, bit for bit: digests to compare two commits on one machine.

Each setting plays two rounds of the small base model on one CPU thread, so that what is carried
from round to round counts too: buffer, personal adapters, control variates.

    none                 Fed-SE, three silos of three families
    ditto fedsa          the same with an adapter of each silo's own
    fedprox scaffold     the same with a proximal term; with control variates (two sums a round)
    record_local         one silo: noisy steps inside it, charged to a ledger
    record_distributed   one silo: a release for each step

Of every round these are digested, names, types and shapes included:

    deltas     the tensors as they leave each silo's training
    encoded    the integers before they are masked; noise included, where there is some
    adapter    what the next round starts from
    personal   the silos' own adapters, where they have some

Noise and samples of the record modes come from ``dp``'s production sources. Their keys alone are
fixed: ``os.urandom`` is replaced while those rounds run, and nothing else is.

The digests depend on the CPU and on the versions of torch and numpy, so none is committed. To show
that a change leaves local work as it is, compare two commits on one machine::

    git switch --detach BEFORE && make bench-local-digests | tail -n 1 > before.json
    git switch --detach AFTER && make bench-local-digests | tail -n 1 > after.json
    cmp before.json after.json

Prints a table and, as its last line, the digests as JSON.
"""

from __future__ import annotations

import os

# Before numpy and torch: the order of a sum depends on the number of threads.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import hashlib
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from dp.config import Mode, PrivacySpec, RecordSpec
from dp.ledger.ledger import Ledger
from dp.noise.grid import Grid
from dp.noise.share import add_noise, per_silo_sigma
from dp.noise.source import NoiseSource
from dp.noise.unit_sum import UnitSum
from evolution.methods.evolver import (
    Assignment,
    EvolverSetup,
    EvolveSettings,
    LocalPrivacy,
    StepWork,
    Work,
)
from evolution.methods.recipe import RecipeEvolver
from evolution.model.lora import initial_adapter
from federation.adapter.layout import Layout
from federation.aggregate.server_step import mean_of_sum, step
from lab.experiment.config import Run, load_experiment
from lab.experiment.engines.engine import ProcessEngine
from lab.experiment.federation_round import SharingCircle
from lab.experiment.member import identity, personal_of
from lab.experiment.single_run import aggregation_of
from lab.experiment.sums import PlainSum

BASE = Path(__file__).parents[1] / "lab" / "base_model"
ROUNDS, RANK, ALPHA = 2, 4, 8.0
EXPERIMENT = f"""
name = "digests"
base = "small"
rounds = {ROUNDS}
seeds = [0]
rank = {RANK}
alpha = {ALPHA}
evolve = {{ episodes = 16, tries_per_task = 2, window = 2 }}
silo = [
  {{ name = "craft", environments = ["craft"], shard_count = 4, demonstrations = 2 }},
  {{ name = "babyai", environments = ["babyai"], shard_count = 2, demonstrations = 2 }},
  {{ name = "maze", environments = ["maze"], shard_count = 2, demonstrations = 2 }},
]
setting = [
  {{ name = "none", method = "fedse" }},
  {{ name = "ditto", method = "fedse_personal" }},
  {{ name = "fedsa", method = "fedsa" }},
  {{ name = "fedprox", method = "fedse", evolve = {{ proximal_mu = 0.1 }} }},
  {{ name = "scaffold", method = "fedse", aggregation = {{ method = "scaffold" }} }},
]
"""
WITH_OWN = frozenset({"ditto", "fedsa"})
SETTINGS = EvolveSettings(episodes=16, tries_per_task=2, window=2)
LOCAL = PrivacySpec(
    mode=Mode.RECORD_LOCAL,
    unit="task",
    clip_l2=0.5,
    noise_multiplier=0.5,
    delta=1e-5,
    epsilon_cap=1e9,
    metrics_noise_multiplier=1.0,
    record=RecordSpec(sampling_rate=0.5, expected_units=8, steps_per_round=3, delta_clip_l2=4.0),
)
DISTRIBUTED = replace(
    LOCAL,
    mode=Mode.RECORD_DISTRIBUTED,
    record=RecordSpec(sampling_rate=0.5, expected_units=8, steps_per_round=3),
)
SILOS = 3
"""In each of the lab's sums, and those that share the noise of ``record_distributed``."""

Tensors = Mapping[str, np.ndarray]
Round = dict[str, str]
"""Digests by what they are of."""


def sha256(*parts: Tensors) -> str:
    """One digest of the tensors of several silos or steps."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} tensors\n".encode())
        for name, tensor in sorted(part.items()):
            digest.update(f"{name} {tensor.dtype.str} {tensor.shape}\n".encode())
            digest.update(tensor.tobytes())
    return digest.hexdigest()


class NotedSum(PlainSum):
    """Notes each silo's integers before they are added up."""

    noted: tuple[dict[str, np.ndarray], ...] = ()

    def _total(
        self, shares: list[np.ndarray], *, grid: Grid, sigma: float, what: str
    ) -> np.ndarray:
        self.noted += tuple({what: share.copy()} for share in shares)
        return super()._total(shares, grid=grid, sigma=sigma, what=what)


def shared_rounds(run: Run, scratch: Path) -> Iterator[Round]:
    """The rounds of one of the lab's settings."""
    first = initial_adapter(BASE, RANK, ALPHA, run.seed)
    mean = NotedSum(run.noise, silos=SILOS, key=(run.seed,))
    members = [(index,) for index in range(SILOS)]
    circle = SharingCircle(
        members, first, aggregation=aggregation_of(run, first, silos=SILOS), mean=mean
    )
    with closing(ProcessEngine(run, scratch)) as engine:
        for number in range(1, ROUNDS + 1):
            mean.noted = ()
            evolutions = list(engine.play(circle.work(number)))
            circle.take(number, evolutions)
            require_learned(evolution.metrics["selected"] for evolution in evolutions)
            found = {
                "deltas": sha256(*(evolution.delta for evolution in evolutions)),
                "encoded": sha256(*mean.noted),
                "adapter": sha256(circle.adapter),
            }
            if run.setting in WITH_OWN:
                found["personal"] = sha256(
                    *(personal_of(run, one, engine.stores.kept, circle.adapter) for one in members)
                )
            yield found


def fixed_keys(name: str) -> Callable[[int], bytes]:
    """An ``os.urandom`` that gives the same bytes in every run, and never the same twice."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(f"{name} {next(calls)}".encode()).digest(size)


def record_rounds(spec: PrivacySpec, scratch: Path) -> Iterator[Round]:
    """The rounds of one silo whose units are protected."""
    adapter: Tensors = initial_adapter(BASE, RANK, ALPHA, SETTINGS.seed)
    setup = EvolverSetup(
        assignments=(Assignment(environment="craft"),),
        base_dir=BASE,
        state_dir=scratch / "silo",
        rank=RANK,
        alpha=ALPHA,
        privacy=spec,
    )
    with (
        Ledger.open(scratch / "ledger", delta=spec.delta, caps={"task": 1e9}) as ledger,
        closing(RecipeEvolver(setup)) as silo,
    ):
        for number in range(1, ROUNDS + 1):
            with patch.object(os, "urandom", fixed_keys(f"{spec.mode} {number}")):
                found, adapter = record_round(silo, spec, adapter, ledger=ledger, number=number)
            yield found


def record_round(
    silo: RecipeEvolver, spec: PrivacySpec, adapter: Tensors, *, ledger: Ledger, number: int
) -> tuple[Round, Tensors]:
    """Explore, train and encode; the adapter is what the next round starts from."""
    reserve = partial(
        ledger.reserve_training,
        run="digests",
        round=number,
        spec=spec,
        adapter_sha256=bytes.fromhex(identity(adapter)),
    )
    local = spec.mode is Mode.RECORD_LOCAL
    evolution = silo.evolve(
        Work(
            round=number,
            adapter=adapter,
            adapter_sha256=identity(adapter),
            trainable=frozenset(adapter),
            settings=SETTINGS,
            seed=0,
            privacy=LocalPrivacy(spec=spec, reserve=reserve if local else None),
        )
    )
    require_learned(evolution.successes.values())
    layout = Layout.from_tensors(adapter)
    encoded = []
    for place in range(spec.sums_per_round):
        vector = (
            layout.flatten(evolution.delta)
            if local
            else silo.unit_sum(step_work(spec, adapter, number=number, place=place))
        )
        share, adapter = released(spec, layout, adapter, vector)
        encoded.append({"share": share})
    return {
        "deltas": sha256(evolution.delta),
        "encoded": sha256(*encoded),
        "adapter": sha256(adapter),
    }, adapter


def step_work(spec: PrivacySpec, adapter: Tensors, *, number: int, place: int) -> StepWork:
    """One release of ``record_distributed`` as the method is asked for it."""
    return StepWork(
        round=number,
        step=place,
        adapter=adapter,
        adapter_sha256=identity(adapter),
        names=tuple(sorted(adapter)),
        trainable=frozenset(adapter),
        settings=SETTINGS,
        seed=0,
        spec=spec,
    )


def released(
    spec: PrivacySpec, layout: Layout, adapter: Tensors, vector: np.ndarray | UnitSum
) -> tuple[np.ndarray, Tensors]:
    """A silo's integers, noise first, and the adapter moved by them alone."""
    release = spec.release
    grid = Grid(clip_l2=release.clip_l2, steps=release.grid, dimension=layout.dimension)
    share = np.zeros(grid.dimension, dtype=np.uint32)
    sigma = per_silo_sigma(release.noise_multiplier, grid.steps, t=SILOS, n_min=SILOS, c=1)
    add_noise(share, sigma, NoiseSource.fresh("digests"))
    if isinstance(vector, UnitSum):
        vector.add_to(share)
    else:
        grid.fit(vector).add_into(share)
    mean = mean_of_sum(share.view(np.int32), scale=grid.scale, count=release.max_units)
    return share, step(layout, adapter, layout, mean, 1.0)


def require_learned(solved: Iterable[float]) -> None:
    """A digest of a silo that had nothing to learn from would say nothing."""
    if not all(solved):
        raise RuntimeError("a silo had nothing to learn from: its digest says nothing")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="chorale-digests-") as directory:
        scratch = Path(directory)
        file = scratch / "experiment.toml"
        file.write_text(EXPERIMENT)
        runs = load_experiment(file).runs(base_dir=BASE, base_sha256="")
        settings = {run.setting: partial(shared_rounds, run) for run in runs}
        for spec in (LOCAL, DISTRIBUTED):
            settings[spec.mode.value] = partial(record_rounds, spec)
        print(f"{'setting':18s}  round  {'of':8s}  SHA-256")
        found: dict[str, list[Round]] = {}
        for name, rounds in settings.items():
            place = scratch / name
            place.mkdir()
            found[name] = []
            for number, digests in enumerate(rounds(place), start=1):
                found[name].append(digests)
                for kind, digest in digests.items():
                    print(f"{name:18s}  {number:5d}  {kind:8s}  {digest}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
