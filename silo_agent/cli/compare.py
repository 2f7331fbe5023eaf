"""``chorale-silo alone`` and ``replay``: what a silo can find out for itself.

Nothing here talks to the coordinator or spends budget.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli.envelope import Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["alone", "replay"]

MAX_ADAPTER_BYTES = 1 << 30

PlanFile = Annotated[Path, typer.Argument(help="The run plan.", exists=True, dir_okay=False)]


def alone(
    plan: PlanFile,
    adapter: Annotated[Path, typer.Option(help="The initial adapter.", exists=True)],
    out: Annotated[Path, typer.Option(help="Directory for evaluation and final adapter.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Evolve without the others: the baseline a federation has to beat."""
    with answering(output):
        from federation.aggregate.registry import INCOMPLETE_ADAPTERS
        from federation.plan.read import read_plan
        from silo_agent.books.local_store import LocalStore
        from silo_agent.config import SiloConfig
        from silo_agent.local_work.alone import RUN_ID, evolve_alone
        from silo_agent.views.judgement import newest_judgements

        asked = read_plan(plan.read_bytes())
        evolve_alone(
            config=SiloConfig.load(data),
            plan=asked,
            adapter=adapter.read_bytes(),
            out_dir=out,
            progress=lambda number, ratio: say(
                f"round {number}: success while exploring {100 * ratio:.1f} %"
            ),
        )
        judged = newest_judgements(LocalStore(out).evaluations(), RUN_ID)
        show_result(output, f"wrote {out}")
        for judgement in judged:
            show_result(output, judgement.line)
        note = INCOMPLETE_ADAPTERS.get(asked.aggregation.method)
        if note is not None:
            say(f"note: {note}; this silo's B is under {out / 'evolve' / 'personal'}")
        succeed(
            output,
            {"out": str(out), "judged": [asdict(row) for row in judged], "adapter_note": note},
        )


def replay(
    plan: PlanFile,
    before: Annotated[Path, typer.Option(help="Adapter file.", exists=True)],
    after: Annotated[Path, typer.Option(help="Adapter file.", exists=True)],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Show one held-out task that only the second adapter solves, turn by turn."""
    with answering(output):
        from federation.adapter.encoding import decode_adapter
        from federation.plan.read import read_plan
        from silo_agent.config import SiloConfig
        from silo_agent.local_work.alone import replay as find

        found = find(
            config=SiloConfig.load(data),
            plan=read_plan(plan.read_bytes()),
            before=decode_adapter(before.read_bytes(), max_bytes=MAX_ADAPTER_BYTES),
            after=decode_adapter(after.read_bytes(), max_bytes=MAX_ADAPTER_BYTES),
        )
        if found is None:
            show_result(output, "no held-out task was failed before and solved after")
            succeed(output, {"replay": None})
            return
        shown: dict[str, Any] = {}
        for when, trajectory in (("before", found.before), ("after", found.after)):
            show_result(output, f"{when}: {'solved' if trajectory.success else 'not solved'}")
            turns = [{"observation": s.observation, "action": s.action} for s in trajectory.steps]
            for turn in turns:
                show_result(output, *(f"  {line}" for line in turn["observation"].splitlines()))
                show_result(output, *(f"    > {line}" for line in turn["action"].splitlines()))
            shown[when] = {
                "success": trajectory.success,
                "turns": turns,
                "final_observation": trajectory.final_observation,
            }
        task = {
            key: value for key, value in asdict(found).items() if key not in ("before", "after")
        }
        succeed(output, {"replay": {**task, **shown}})
