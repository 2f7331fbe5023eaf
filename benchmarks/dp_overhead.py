"""What a record-level private step costs: against the same step without privacy and against Opacus.

One step = a batch of units, each one sequence of T tokens of which a third are the agent's, on the
shipped base model, or that in ``--base``, with a rank-8 adapter on every linear layer; forward,
backward, and Adam. Every arm gets the same sequences, the same token count (T·units, so that nobody
has to cut the batch) and one thread.

    plain       mean loss over the batch's agent tokens, one backward
    fixed …     ``dp.steps.sgd.DpStep`` with each of ``dp.steps.backends``: gradients, clip, integer
                grid, discrete Gaussian noise from the system's CSPRNG
    opacus/…    ``PrivacyEngine`` in each of its modes that runs this model: gradients, clip,
                continuous Gaussian noise from torch's generator (its secure mode is not available)
    …, cut      the same without the logits that no loss looks at, which ``loop`` leaves out too,
                and ``fixed`` where it computes one unit at a time
    …, uncut    the same with them

The arms take turns and the order rotates; a ratio is the median of the ratios of neighbours in
time, in CPU seconds of one thread, so that a busy machine slows both sides. The base of "vs_opacus"
is its fastest mode at that T.
"ours" is the default, ``fixed``; what its tests of a shape take, once a round, is told in steps.

Then rounds of mixed lengths: gradients alone, the tests of every shape in use at the start of each
round included, of ``fixed`` against ``loop``.

The last part takes no model: noise, clip and grid alone at large d, on one core.

Prints tables and, as its last line, the figures as JSON.
"""

from __future__ import annotations

import os

# Before numpy and torch: more threads would blur who uses how many cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

from dp.config import DEFAULT_BACKEND, Mode, PrivacySpec, RecordSpec
from dp.errors import PrivacyError
from dp.ledger.ledger import Ledger
from dp.ledger.receipt import TrainingReceipt
from dp.noise.grid import Grid
from dp.noise.share import add_noise
from dp.noise.source import NoiseSource
from dp.noise.unit_sum import UnitSum
from dp.steps.backends import BACKENDS
from dp.steps.fixed import FixedBackend
from dp.steps.sgd import DpStep
from dp.steps.units import UnitId
from evolution.model.causal_lm import load_base
from evolution.model.lora import attach_lora, lora_parameters
from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.sft import RowTerms
from evolution.trajectory import Step, Task, Trajectory

BASE = Path(__file__).parents[1] / "lab" / "base_model"
OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")
RANK, ALPHA = 8, 16.0
CLIP, NOISE = 1.0, 1.0
TOKENS_PER_STEP = 4096
CORE_UNITS = 16
LENGTHS = (64, 256, 1024)
MIXES = (
    (32, 4, 40, 200),
    (32, 10, 40, 200),
    (16, 4, 100, 900),
    (64, 4, 100, 900),
    (32, 20, 40, 80),
)
"""Units of a step, steps of a round, and between which lengths."""
LOSS = RowTerms(Part.own("nll"), keep=True)
UNCUT = RowTerms(Part.own("nll"))

TakeStep = Callable[[], None]


def sequence(index: int, length: int) -> Row:
    """A made-up episode: two parts of context, one of the agent's tokens, several turns."""
    rng = np.random.default_rng([index, length])
    turns = max(1, length // 32)
    answer = length // turns // 3
    steps = []
    for turn in range(turns):
        size = length // turns + (length % turns if turn == 0 else 0)
        tokens = tuple(int(t) for t in rng.integers(6, 130, size))
        steps.append(
            Step(
                observation="",
                action="",
                context_ids=tokens[answer:],
                action_ids=tokens[:answer],
                action_logprobs=(0.0,) * answer,
            )
        )
    return Row.of(
        Trajectory(
            task=Task(environment="made-up", task_id=index),
            steps=tuple(steps),
            final_observation="",
            success=True,
            adapter_sha256="",
            round=0,
        )
    )


def adapted(base: Path) -> tuple[Any, dict[str, torch.nn.Parameter]]:
    """The base model with an adapter of small values in both factors."""
    model = attach_lora(load_base(base), rank=RANK, alpha=ALPHA)
    parameters = lora_parameters(model)
    generator = torch.Generator().manual_seed(0)
    for parameter in parameters.values():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05
        parameter.requires_grad = True
    return model, parameters


def plain(base: Path, rows: Sequence[Row]) -> TakeStep:
    model, parameters = adapted(base)
    model.eval()
    optimiser = torch.optim.Adam(parameters.values(), lr=1e-4)

    def take() -> None:
        sums, counts = LOSS.sums(model, *LOSS.collate(rows))
        optimiser.zero_grad()
        (sums.sum() / counts.sum()).backward()  # type: ignore[no-untyped-call]  # untyped in torch
        optimiser.step()

    return take


def ours(
    base: Path, backend: str, rows: Sequence[Row], receipt: TrainingReceipt, loss: RowTerms = LOSS
) -> TakeStep:
    model, parameters = adapted(base)
    gradients = BACKENDS[backend](
        model=model.eval(),
        parameters=parameters,
        loss=loss,
        probe=(sequence(0, 8), sequence(1, 12)),
    )
    step: DpStep[Row] = DpStep(receipt=receipt, dimension=gradients.dimension, backend=gradients)
    units = tuple(UnitId("made-up", str(index)) for index in range(len(rows)))
    rows_of = {unit: (row,) for unit, row in zip(units, rows, strict=True)}
    optimiser = torch.optim.Adam(parameters.values(), lr=1e-4)

    def take() -> None:
        flat = torch.from_numpy(step.gradient(units, rows_of))
        start = 0
        for parameter in parameters.values():
            part = flat[start : start + parameter.numel()]
            parameter.grad = -part.view_as(parameter)
            start += parameter.numel()
        optimiser.step()
        optimiser.zero_grad()

    return take


class Positional(torch.nn.Module):
    """The model as a function of its first argument: one of the modes passes nothing else."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Logits alone, of these positions or of all."""
        logits: torch.Tensor = self.model(
            input_ids=input_ids, use_cache=False, logits_to_keep=0 if keep is None else keep
        ).logits
        return logits


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What the loss looks at."""

    logits: torch.Tensor


def theirs(base: Path, mode: str, rows: Sequence[Row], *, cut: bool) -> TakeStep:
    """A mode of Opacus; with ``cut`` it too leaves out the logits that no loss looks at."""
    model, parameters = adapted(base)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(len(rows))), batch_size=len(rows)
    )
    made = PrivacyEngine().make_private(
        module=Positional(model).train(),
        optimizer=torch.optim.Adam(parameters.values(), lr=1e-4),
        data_loader=data,
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    wrapped, optimiser = made[0], made[1]

    def asked(
        *, input_ids: torch.Tensor, logits_to_keep: torch.Tensor | None = None, **_: object
    ) -> Output:
        kept = () if logits_to_keep is None else (logits_to_keep,)
        return Output(logits=wrapped(input_ids, *kept))

    def take() -> None:
        # Expanded weights must be cleared before the forward, the others may be.
        optimiser.zero_grad()
        sums, counts = LOSS.sums(asked, *LOSS.collate(rows), alone=cut)
        per_row = sums / counts
        if mode == "ghost":
            DPTensorFastGradientClipping(wrapped, optimiser, per_row).backward()
        else:
            per_row.mean().backward()  # type: ignore[no-untyped-call]  # untyped in torch
        optimiser.step()

    return take


def opacus_arms(
    base: Path, modes: Sequence[str], rows: Sequence[Row]
) -> tuple[dict[str, TakeStep], dict[str, str]]:
    """The modes that run this model, and why the others do not."""
    arms: dict[str, TakeStep] = {}
    refused: dict[str, str] = {}
    for mode, cut in itertools.product(modes, (False, True)):
        name = f"{mode}, cut" if cut else mode
        try:
            arm = theirs(base, mode, rows, cut=cut)
            arm()
        except Exception as error:  # noqa: BLE001  # any failure of a mode is a finding, not ours
            refused[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
        else:
            arms[f"opacus/{name}"] = arm
    return arms, refused


def in_turn(arms: dict[str, TakeStep], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each arm, all arms one after another, each round starting elsewhere."""
    names = list(arms)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for arm in arms.values():
        arm()
    for repeat in range(repeats):
        shift = repeat % len(names)
        for name in names[shift:] + names[:shift]:
            started = time.process_time()
            arms[name]()
            seconds[name].append(time.process_time() - started)
    return seconds


def ratio(one: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def steps_at(
    length: int, *, tokens: int, repeats: int, ledger: Ledger, base: Path, modes: Sequence[str]
) -> dict[str, Any]:
    """All arms at one sequence length."""
    count = max(2, tokens // length)
    # One step to warm up before the measured ones.
    steps = repeats + 1
    rows = [sequence(index, length) for index in range(count)]
    spec = PrivacySpec(
        mode=Mode.RECORD_LOCAL,
        unit="task",
        clip_l2=CLIP,
        noise_multiplier=NOISE,
        delta=1e-5,
        epsilon_cap=1e9,
        grid=1 << 18,
        metrics_noise_multiplier=1.0,
        record=RecordSpec(
            sampling_rate=1.0, expected_units=count, steps_per_round=steps, delta_clip_l2=1.0
        ),
    )
    arms = {"plain": plain(base, rows)}
    told = {**{name: (name, LOSS) for name in BACKENDS}, "loop, uncut": ("loop", UNCUT)}
    for number, (name, (backend, loss)) in enumerate(told.items()):
        receipt = ledger.reserve_training(
            run=f"{length}", round=number, spec=spec, adapter_sha256=bytes(32)
        )
        arms[name] = ours(base, backend, rows, receipt, loss)
    their_arms, refused = opacus_arms(base, modes, rows)
    seconds = in_turn({**arms, **their_arms}, repeats)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    fastest = min(their_arms, key=median.__getitem__)
    dimension = sum(parameter.numel() for parameter in adapted(base)[1].values())
    core = core_seconds(dimension, count, 3)
    print(f"\nT = {length}, {count} units, d = {dimension}")
    for name, value in sorted(median.items(), key=lambda item: item[1]):
        print(
            f"  {name:18s} {value * 1e3:9.1f} ms   x{ratio(seconds[name], seconds['plain']):.2f} "
            f"of plain   x{ratio(seconds[name], seconds[fastest]):.2f} of {fastest}"
        )
    for mode, why in refused.items():
        print(f"  opacus/{mode:11s} does not run: {why}")
    share = sum(core.values()) / median[DEFAULT_BACKEND]
    print(f"  noise, clip and grid: {share:.1%} of a step with {DEFAULT_BACKEND}")
    tests = test_seconds(base, rows) / median[DEFAULT_BACKEND]
    print(f"  tests of this shape: {tests:.1f} steps, once a round")
    return {
        "tests_steps": tests,
        "fastest_opacus": fastest,
        "vs_opacus": ratio(seconds[DEFAULT_BACKEND], seconds[fastest]),
        "loop_vs_opacus": ratio(seconds["loop"], seconds[fastest]),
        "vs_nondp": {name: ratio(seconds[name], seconds["plain"]) for name in told},
        "opacus_vs_nondp": ratio(seconds[fastest], seconds["plain"]),
        "core_share": share,
        "refused": sorted(refused),
    }


def test_seconds(base: Path, rows: Sequence[Row]) -> float:
    """CPU seconds of the tests of a shape: what a first gradient takes more than the next."""
    model, parameters = adapted(base)
    gradients = FixedBackend(
        model=model.eval(),
        parameters=parameters,
        loss=LOSS,
        probe=(sequence(0, 8), sequence(1, 12)),
    )
    taken = []
    for _ in range(2):
        started = time.process_time()
        list(gradients.unit_gradients([rows[:1]]))
        taken.append(time.process_time() - started)
    return max(0.0, taken[0] - taken[1])


def rounds_of_mixed_lengths(base: Path, repeats: int) -> dict[str, float]:
    """A round with ``fixed``, tests and all, against the same with ``loop``: ratios of CPU time."""
    model, parameters = adapted(base)
    loop, fixed = (
        BACKENDS[name](
            model=model.eval(),
            parameters=parameters,
            loss=LOSS,
            probe=(sequence(0, 8), sequence(1, 12)),
        )
        for name in ("loop", "fixed")
    )
    found: dict[str, float] = {}
    print("\nrounds of mixed lengths\nunits  steps  lengths   fixed with its tests, of loop")
    for count, steps, least, most in MIXES if repeats > 1 else MIXES[:1]:
        rng = np.random.default_rng([count, steps, most])
        batches = [
            sorted((sequence(i, int(rng.integers(least, most))) for i in range(count)), key=len)
            for _ in range(steps)
        ]
        seconds: dict[str, list[float]] = {"loop": [], "fixed": []}
        for _ in range(min(repeats, 3)):
            for name, backend in (("loop", loop), ("fixed", fixed)):
                started = time.process_time()
                backend.renew()
                for rows in batches:
                    list(backend.unit_gradients([[row] for row in rows]))
                seconds[name].append(time.process_time() - started)
        of_loop = ratio(seconds["fixed"], seconds["loop"])
        found[f"{count}x{steps} {least}-{most}"] = round(of_loop, 2)
        print(f"{count:5d} {steps:6d} {least:4d}-{most:3d} {of_loop:10.2f}")
    return found


def core_seconds(dimension: int, units: int, repeats: int) -> dict[str, float]:
    """Noise, and clip and grid of all units, of one step without a model: median CPU seconds."""
    grid = Grid(clip_l2=CLIP, steps=1 << 18, dimension=dimension)
    vector = np.full(dimension, 2.0 / dimension**0.5, dtype=np.float32)
    figures: dict[str, list[float]] = {"noise": [], "clip_and_grid": []}
    for _ in range(repeats):
        out = np.zeros(dimension, dtype=np.uint32)
        started = time.process_time()
        add_noise(out, NOISE * grid.steps, NoiseSource.fresh("benchmark"))
        drawn = time.process_time()
        total = UnitSum(grid, max_units=units)
        for _ in range(units):
            total.add(vector)
        total.add_to(out)
        figures["noise"].append(drawn - started)
        figures["clip_and_grid"].append(time.process_time() - drawn)
    return {name: statistics.median(values) for name, values in figures.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run everything once, at small sizes")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--tokens", type=int, default=TOKENS_PER_STEP, help="in one step")
    parser.add_argument("--base", type=Path, default=BASE, help="directory of the base model")
    parser.add_argument("--modes", nargs="+", choices=OPACUS_MODES, default=list(OPACUS_MODES))
    parser.add_argument("--dimension", type=int, default=10_000_000)
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.lengths, options.tokens = 1, [64], 256
        options.dimension = 100_000
    torch.set_num_threads(1)
    # Opacus on this model: notes about hooks at the first layer, attention without a batching rule.
    warnings.simplefilter("ignore")
    results: dict[int, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        Ledger.open(Path(directory) / "ledger", delta=1e-5, caps={"task": 1e12}) as ledger,
    ):
        for length in options.lengths:
            results[length] = steps_at(
                length,
                tokens=options.tokens,
                repeats=options.repeats,
                ledger=ledger,
                base=options.base,
                modes=options.modes,
            )
    mixed = rounds_of_mixed_lengths(options.base, options.repeats)
    core = core_seconds(options.dimension, CORE_UNITS, 1 if options.quick else 3)
    print(
        f"\nd = {options.dimension}, {CORE_UNITS} units, one core: noise {core['noise']:.2f} s, "
        f"clip and grid {core['clip_and_grid']:.2f} s"
    )
    print(
        json.dumps(
            {
                "vs_opacus": {str(t): round(r["vs_opacus"], 3) for t, r in results.items()},
                "vs_nondp": {
                    name: {str(t): round(r["vs_nondp"][name], 3) for t, r in results.items()}
                    for name in (*BACKENDS, "loop, uncut")
                },
                "rounds_of_loop": mixed,
                "tests_steps": {str(t): round(r["tests_steps"], 1) for t, r in results.items()},
                "loop_vs_opacus": {
                    str(t): round(r["loop_vs_opacus"], 3) for t, r in results.items()
                },
                "fastest_opacus": {str(t): r["fastest_opacus"] for t, r in results.items()},
                "opacus_vs_nondp": {
                    str(t): round(r["opacus_vs_nondp"], 3) for t, r in results.items()
                },
                "core_share": {str(t): round(r["core_share"], 3) for t, r in results.items()},
                "dimension": options.dimension,
                "core_units": CORE_UNITS,
                "noise_s": round(core["noise"], 3),
                "clip_and_grid_s": round(core["clip_and_grid"], 3),
            }
        )
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PrivacyError as error:
        sys.exit(str(error))
