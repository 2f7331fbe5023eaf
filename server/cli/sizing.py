"""``chorale plan new``: a first plan that fits, each line with where it comes from.

Nothing is asked and nothing is sent: silos, episodes and ε decide, and the base model's shape where
it is named.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dp.config import Mode
from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from server.cli.program import answering

if TYPE_CHECKING:
    from collections.abc import Iterator

    from federation.adapter.shapes import ModelShape
    from federation.adapter.target import Target
    from federation.forecast.proposal import Base
    from federation.forecast.sizing import Size, Wish
    from federation.plan.plan import Plan

__all__ = ["app", "write_new"]

app = typer.Typer(name="plan", help="Plans: the file that a run follows.", no_args_is_help=True)

_LARGE: Final = 1_000_000_000
"""Parameters above which a base model is better held in 16 bits."""
_FEWER: Final = ("v_proj",)
"""Layers to train where all are too many for the noise; measured in ``docs/privacy.md``."""


@app.callback()
def _plans() -> None:
    """Plans: the file that a run follows."""


@app.command("new")
def new(
    *,
    silos: Annotated[int, typer.Option(help="Silos that will be in the roster.")],
    episodes: Annotated[
        int, typer.Option(help="Episodes that each silo explores in a round, tries included.")
    ],
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Most ε of a task (of a silo in mode silo) over the whole run; none in mode none."
        ),
    ] = None,
    environments: Annotated[
        list[str] | None,
        typer.Option(
            "--environment",
            help="What the silos explore, as their silo.toml name it; repeat it for more. craft, "
            "which comes with Chorale, if not given.",
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ, at which ε is stated.")] = 1e-5,
    mode: Annotated[
        Mode,
        typer.Option(
            help="What is hidden: each task, by its own silo (record_local) or by noise that the "
            "silos share (record_distributed); a silo's whole data (silo), which takes some "
            "sixty silos; nothing but by masks (none)."
        ),
    ] = Mode.RECORD_LOCAL,
    colluding: Annotated[
        int, typer.Option(help="Silos that may work together with the coordinator, c.")
    ] = 1,
    rounds: Annotated[int, typer.Option(help="Rounds of the run.", min=1, max=10_000)] = 3,
    tries: Annotated[int, typer.Option(help="Tries at each task.", min=1, max=1024)] = 4,
    base: Annotated[
        str | None,
        typer.Option(
            help="The base model: its directory, whose digest is written into the plan, or its id. "
            "Its shape decides how much noise the plan carries."
        ),
    ] = None,
    dimension: Annotated[
        int | None,
        typer.Option(help="Uploaded numbers, where no base of known shape says them.", min=1),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; stdout has the plan if not given."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Write a plan that fits so many silos, episodes and ε, to be read and changed.

    It is computed here and nothing is sent: the sampling rate and the steps of a round, the least
    noise with which the accountant stays within ε over all rounds and spare attempts, quorum, grid
    and times. Each line has a comment that says where its value comes from and what changes it.
    What cannot fit is refused, with the numbers that would.

    The smallest case in use, and one that counts a base model's layers and writes its digest:

    chorale plan new --silos 3 --episodes 80 --epsilon 8 -o plan.toml

    chorale plan new --silos 10 --episodes 600 --epsilon 4 --environment maze --base BASE_DIR

    Then: chorale run plan plan.toml says what it costs and whether it can start, chorale-silo
    policy init --plan plan.toml proposes a policy for it at each silo, chorale run start begins.
    """
    with answering(output):
        from federation.errors import PlanError
        from federation.forecast.proposal import write_plan
        from federation.forecast.sizing import LEAST_DIMENSION, Wish

        wish = Wish(
            silos=silos,
            episodes=episodes,
            epsilon=epsilon,
            delta=delta,
            mode=mode,
            colluding=colluding,
            rounds=rounds,
            tries=tries,
            dimension=LEAST_DIMENSION if dimension is None else dimension,
        )
        try:
            size, known = _sized(wish, base, counted=dimension is not None)
            text, plan = write_plan(
                size, name=_name(out), base=known, environments=tuple(environments or ("craft",))
            )
        except PlanError as error:
            raise CommandError(
                "; ".join(error.problems),
                code="plan_refused",
                exit_code=Exit.ARGUMENTS,
                next_step="change what is named, and ask again; --help says what each means",
            ) from error
        _require_start(size, plan)
        lines = _summary(size)
        if out is None:
            show_result(output, *text.splitlines())
            say(*lines)
        else:
            write_new(out, text.encode(), force=force)
            show_result(output, f"wrote {out}: read it, each line says where it comes from", *lines)
        if known.sha256 is None:
            say("note: base_sha256 is still zeros: write what chorale-silo status shows")
        unknown = "" if known.counted else " --base-config BASE_DIR"
        file = "PLAN" if out is None else out
        say(f"next: chorale run plan {file} --silos {silos} --colluding {colluding}{unknown}")
        succeed(
            output,
            {
                "plan_file": None if out is None else str(out),
                "plan_toml": text,
                "threshold": size.threshold,
                "quorum": size.quorum,
                "charged_attempts": size.charged,
                "epsilon": size.epsilon,
                "predicted_cosine": size.cosine,
                "dimension": size.wish.dimension,
                "most_dimension": size.most_dimension,
                "spec": asdict(size.spec),
            },
        )


def _sized(wish: Wish, base: str | None, *, counted: bool) -> tuple[Size, Base]:
    """The numbers that fit, with as many layers trained as they carry.

    Raises:
        PlanError: None fit, however few layers are trained.
    """
    from federation.errors import PlanError
    from federation.forecast.proposal import Base
    from federation.forecast.sizing import size_of
    from server.cli.base_model import base_digest, base_shape

    if base is None:
        return size_of(wish), Base(counted=counted)
    found, digest = base_shape(base, None), base_digest(base, None)
    known = Base(name=base, sha256=None if digest is None else digest[0], counted=counted)
    if found is None or counted:
        return size_of(wish), known
    shape, _ = found
    known = replace(known, counted=True, large=shape.parameters > _LARGE)
    refused: PlanError | None = None
    for target, dimension in _uploads(shape, wish.mode):
        try:
            return size_of(replace(wish, dimension=dimension)), replace(known, target=target)
        except PlanError as error:
            refused = error
    if refused is None:
        raise ValueError("every base model has layers")
    raise refused


def _uploads(shape: ModelShape, mode: Mode) -> Iterator[tuple[Target, int]]:
    """Which layers may be trained, and how many numbers are uploaded then."""
    from federation.adapter.target import ALL_LINEAR
    from federation.forecast.proposal import adapter_rank

    targets: tuple[Target, ...] = (ALL_LINEAR,) if mode is Mode.NONE else (ALL_LINEAR, _FEWER)
    for target in targets:
        A, B = shape.lora_parameters(adapter_rank(mode), target)
        # With noise A stays as it is.
        yield target, A + B if mode is Mode.NONE else B


def _require_start(size: Size, plan: Plan) -> None:
    """Refuse what the forecast would, which looks at more than the size."""
    from federation.forecast.forecast import forecast_plan

    wish = size.wish
    forecast = forecast_plan(
        plan, silos=wish.silos, colluding=wish.colluding, dimension=wish.dimension
    )
    if forecast.refusals:
        raise CommandError(
            "no such plan can start: " + "; ".join(forecast.refusals),
            code="plan_refused",
            exit_code=Exit.ARGUMENTS,
            next_step="ask for fewer --episodes, or another --epsilon",
        )


def _summary(size: Size) -> tuple[str, ...]:
    """The figures, for people."""
    wish, record = size.wish, size.spec.record
    first = (
        f"{wish.mode.value}: {wish.rounds} rounds of {size.tasks} tasks a silo; {size.threshold} "
        f"of {wish.silos} silos must answer, {size.quorum} open a round"
    )
    lines = [first]
    if record is not None:
        lines.append(
            f"q = {record.sampling_rate:g}, B̄ = {record.expected_units}, "
            f"{record.steps_per_round} steps a round"
        )
    if wish.mode is not Mode.NONE:
        lines.append(
            f"z = {size.spec.noise_multiplier:g}: ε = {size.epsilon:.4g} of {wish.epsilon:g} at "
            f"δ = {wish.delta:g}; cosine at most {size.cosine:.3g} with {wish.dimension:,} "
            f"uploaded numbers, of which the plan carries {size.most_dimension:,}"
        )
    return tuple(lines)


def _name(out: Path | None) -> str:
    """What the run is called: the file's name as far as a plan takes it."""
    stem = "" if out is None else re.sub(r"[^a-z0-9._-]+", "-", out.stem.lower())[:64]
    return stem.lstrip("._-") or "plan"


def write_new(path: Path, content: bytes, *, force: bool) -> None:
    """Write a plan's file, which is a new one unless ``force`` says otherwise.

    Raises:
        CommandError: There is one.
    """
    from ops.files import replace_file

    if force:
        replace_file(path, (content,), mode=0o644)
        return
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError as error:
        raise CommandError(
            f"{path} exists",
            code="file_exists",
            exit_code=Exit.ARGUMENTS,
            next_step="give --force to replace it, or another -o FILE",
        ) from error
