"""``chorale-silo diagnose``: whether this silo's environments can share an adapter with others'."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["diagnose"]


def diagnose(
    *,
    reference: Annotated[
        str,
        typer.Option(
            help="An environment of this silo to compare with, instead of each one's own as "
            "everybody has it."
        ),
    ] = "",
    steps: Annotated[
        int, typer.Option(help="GRPO steps in each of the two environments.", min=1, max=64)
    ] = 2,
    explored: Annotated[
        int, typer.Option(help="Episodes of one such step.", min=2, max=100_000)
    ] = 64,
    learning_rate: Annotated[float, typer.Option(help="Of these steps.", min=1e-9, max=1.0)] = 1e-3,
    max_new_tokens: Annotated[
        int, typer.Option(help="Longest answer in one turn, as in the plan.", min=1, max=8192)
    ] = 16,
    episodes: Annotated[
        int, typer.Option(help="Episodes of T1 and T3 in each environment.", min=6, max=10_000)
    ] = 32,
    seed: Annotated[int, typer.Option(help="Decides every draw.", min=0)] = 0,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Compare this silo's environments with the public reference, before any training together.

    A few steps of GRPO in both, then T1 (do kernels agree where policies go), T2 (are the same
    actions best) and T3 (does the environment show), and the pattern to expect with what to do.

    Everything stays here: nothing is sent or charged, and the reports are in the data directory.
    The daemon may run; both then share the machine.
    """
    with answering(output):
        from evolution.diagnose.diagnosis import Budget
        from evolution.diagnose.report import verdicts
        from evolution.errors import EvolutionError
        from silo_agent.config import SiloConfig
        from silo_agent.local_work.diagnosis import Asked, diagnose_silo

        config = SiloConfig.load(data)
        asked = Asked(
            budget=Budget(steps=steps, episodes=episodes, seed=seed),
            reference=reference,
            max_new_tokens=max_new_tokens,
            explored=explored,
            learning_rate=learning_rate,
        )
        try:
            made = diagnose_silo(config, asked, say=say)
        except EvolutionError as error:
            raise CommandError(
                str(error),
                code="diagnosis",
                exit_code=Exit.SERVER,
                hint="`chorale-silo doctor --dry-round` looks at each part by itself",
            ) from error
        for own in made:
            if own.found is None:
                show_result(output, f"{own.environment}: not compared: {own.why_not}")
                continue
            for line in verdicts(own.found):
                show_result(output, f"{own.environment}: {line}")
            say(f"report: {own.report}, which stays in this silo")
        succeed(
            output,
            {
                "environments": [
                    {
                        "environment": own.environment,
                        "predicted": None if own.found is None else own.found.predicted.pattern,
                        "t1": None if own.found is None else own.found.t1.passed,
                        "t2": None if own.found is None else own.found.t2.passed,
                        "t3": None if own.found is None else own.found.t3.passed,
                        "why_not": own.why_not,
                        "report": None if own.report is None else str(own.report),
                    }
                    for own in made
                ]
            },
        )
