"""``chorale audit explain`` and ``chorale audit decisions``: why a round asked whom it asked."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from server.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from federation.advice.record import AdviceRecord
    from federation.selection.decided import Decided

__all__ = ["decisions", "explain"]

MAX_ROUND: Final = 2**32 - 1


def explain(
    *,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id.")],
    round_number: Annotated[
        int, typer.Argument(metavar="ROUND", min=1, max=MAX_ROUND, help="From 1.")
    ],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Why a round asked whom it asked: what was known, asked, answered, allowed and decided.

    The decision is made again from what was recorded, without a model, and compared.
    """
    with answering(output):
        import asyncio

        decided = next((d for d in _of_run(data, run_id) if d.round == round_number), None)
        if decided is None:
            raise CommandError(
                f"nothing was chosen for round {round_number} of {run_id}",
                code="no_decision",
                exit_code=Exit.ARGUMENTS,
                hint="a plan with [selection] policy 'all' asks everybody, and chooses nothing",
            )
        equal = asyncio.run(decided.again()) == decided.choice
        told = _told(decided)
        for line in _lines(told, equal=equal):
            show_result(output, line)
        succeed(output, {**told, "replay_equal": equal})


def decisions(
    *,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write every decision of a run with all that it followed from, a line a round.

    It holds what the advisor was shown and answered: public figures, and the model's own words.
    """
    with answering(output):
        from ops.files import replace_file

        found = _of_run(data, run_id)
        if not found:
            raise CommandError(
                f"nothing was chosen for a round of {run_id}",
                code="no_decision",
                exit_code=Exit.ARGUMENTS,
                hint="a plan with [selection] policy 'all' asks everybody, and chooses nothing",
            )
        replace_file(out, (f"{each.to_line()}\n".encode() for each in found), mode=0o600)
        show_result(output, f"wrote {out}: {len(found)} rounds")
        say(f"next, anywhere: chorale-lab replay-decisions {out}")
        succeed(output, {"decisions": str(out), "rounds": len(found)})


def _of_run(data: Path, run_id: str) -> list[Decided]:
    """A run's decisions that were made, by round.

    Raises:
        CommandError: There is no such run.
    """
    from federation.selection.decided import Decided
    from federation.selection.policies import Choice
    from server.config import CoordinatorConfig
    from server.store import Store
    from server.store.served import database_in_force

    store = Store(database_in_force(CoordinatorConfig.load(data)))
    try:
        if run_id not in {row.run_id for row in store.runs.list()}:
            raise CommandError(
                f"there is no run {run_id!r}",
                code="run_absent",
                exit_code=Exit.ARGUMENTS,
                next_step="chorale run list",
            )
        found = []
        for number in store.decisions.rounds(run_id):
            row = store.decisions.of_round(run_id, number)
            made = store.choices.of_round(run_id, number)
            if row is None or made is None:
                # Still being decided.
                continue
            choice = Choice(
                silos=made.silos,
                why=made.why,
                ready_deadline_s=made.ready_deadline_s,
                local_epochs=made.local_epochs,
                stop=made.stop,
                diagnose=made.diagnose,
            )
            found.append(
                Decided(
                    run_id=run_id, round=number, inputs=row.inputs, advice=row.advice, choice=choice
                )
            )
        return found
    finally:
        store.close()


def _told(decided: Decided) -> dict[str, Any]:
    from dataclasses import asdict

    from federation.advice.record import AdviceRecord
    from federation.selection.decide import Inputs

    inputs = Inputs.from_json(decided.inputs)
    advice: dict[str, Any] = {}
    if decided.advice:
        advice = _advice(AdviceRecord.decode(decided.advice))
    return {
        "run": decided.run_id,
        "round": decided.round,
        "policy": inputs.section.policy,
        "there": sorted(inputs.live),
        "at_least": inputs.at_least,
        "inputs_sha256": decided.inputs_sha256,
        "advice_sha256": decided.advice_sha256,
        "advice": advice,
        "choice": asdict(decided.choice),
    }


def _advice(record: AdviceRecord) -> dict[str, Any]:
    from federation.advice.proposal import Proposal
    from federation.selection.decided import why_none

    result = record.result
    if result is None:
        verdict = "not over"
    elif isinstance(result, Proposal):
        verdict = "a proposal within its limits"
    else:
        verdict = f"no proposal: {why_none(result)}"
    return {
        "model": record.model,
        "turns": [
            {
                "request_sha256": turn.request_sha256,
                "answer_sha256": hashlib.sha256(turn.content).hexdigest(),
                "failure": turn.failure or "",
                "seconds": turn.milliseconds / 1000,
                "tokens": turn.tokens,
            }
            for turn in record.turns
        ],
        "verdict": verdict,
        "reason": result.reason if isinstance(result, Proposal) else "",
    }


def _lines(told: dict[str, Any], *, equal: bool) -> list[str]:
    from federation.text import printable

    choice, advice = told["choice"], told["advice"]
    there = told["there"]
    lines = [
        f"round {told['round']} of {told['run']}, policy {told['policy']}",
        f"there were {len(there)}: {', '.join(there)}; at least {told['at_least']} are needed",
    ]
    lines.extend(
        f"asked {turn['request_sha256'][:16]}, answered "
        f"{turn['failure'] or turn['answer_sha256'][:16]} after {turn['seconds']:.1f} s, "
        f"{turn['tokens']} tokens"
        for turn in advice.get("turns", ())
    )
    if advice:
        lines.append(f"verdict: {printable(advice['verdict'])}")
        if advice["reason"]:
            lines.append(f"the model's reason, its own words: {printable(advice['reason'])}")
    lines.append(f"decided: {', '.join(choice['silos'])} ({printable(choice['why'])})")
    lines.extend(
        f"moved {name} to {choice[name]}"
        for name in ("ready_deadline_s", "local_epochs")
        if choice[name] is not None
    )
    if choice["stop"]:
        lines.append("the run is paused after the round")
    if choice["diagnose"]:
        lines.append("a diagnosis is asked for: chorale-silo diagnose at each site")
    lines.append(f"inputs {told['inputs_sha256']}, advice {told['advice_sha256'] or 'none'}")
    lines.append("decided again from the record: " + ("the same" if equal else "ANOTHER DECISION"))
    return lines
