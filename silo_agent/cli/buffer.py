"""``chorale-silo buffer``: demonstrations for this silo, and what its memories hold.

Everything here stays on this machine. The commands need the base model's tokenizer at most, never a
GPU, and run while the daemon is stopped: they hold the ledger's lock as long as they work, so a
daemon that runs refuses them, and one that is started meanwhile refuses to start.

Demonstrations are imported once, for all runs, into ``experts.sqlite``; a run copies them into its
own memory when its method is loaded. Deletion reaches every memory under the data directory: tries
that succeeded and tries that failed, what was explored, and demonstrations.

Reports of ``chorale-silo diagnose`` may quote what was played, so deletion takes all of them too.

What an explored round came to may be on disk as well, finished and not released yet
(``silo_agent/local_work/result_file.py``). Nobody can tell whose data is in it, so deletion takes
all of it: those rounds are worked on again.

Covered: import, show, delete. Not covered: memories of rehearsals (``chorale-silo alone --out``),
which are in the directory that was named there; adapters, which cannot forget.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering
from silo_agent.cli.stores import daemon_stopped, memories, principles_of, typed

if TYPE_CHECKING:
    from evolution.rollout.conversation import ChatFormat

__all__ = ["buffer_app"]


buffer_app = typer.Typer(
    help="This silo's memory: what its agent tried, and what it learns from. Nothing of it leaves "
    "this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@buffer_app.command("import")
def buffer_import(
    file: Annotated[Path, typer.Argument(help="JSON Lines in AgentGym's form.")],
    environment: Annotated[str, typer.Option(help="The environment they are tasks of.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Import demonstrations for all runs; importing them again changes nothing.

    They are part of every training set of a plan that says use_expert. Under
    record-level privacy nothing is trained on them.
    """
    with answering(output), typed():
        from evolution.memory.memory import Memory
        from evolution.methods.expert_file import read_expert_file
        from evolution.methods.population import EXPERT_FILE
        from silo_agent.config import SiloConfig

        config = SiloConfig.load(data)
        known = tuple(entry.environment for entry in config.environments)
        if environment not in known:
            raise CommandError(
                f"this silo does not explore {environment!r}; it explores "
                f"{', '.join(known) or 'nothing'}",
                code="unknown_environment",
                exit_code=Exit.ARGUMENTS,
                next_step=f"add it to environments in {data / 'silo.toml'}, or name another one",
            )
        with daemon_stopped(config.data_dir):
            given = read_expert_file(file, environment=environment, chat=_chat(config.base_model))
            with Memory(config.data_dir / EXPERT_FILE) as memory:
                added = memory.add_expert(given)
        longest = max((trajectory.token_count for trajectory in given), default=0)
        show_result(
            output, f"{added} new demonstrations of {len(given)}; the longest has {longest} tokens"
        )
        say("a plan whose max_sequence_tokens is smaller leaves the longer ones out")
        succeed(output, {"read": len(given), "added": added, "longest_tokens": longest})


@buffer_app.command("show")
def buffer_show(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """How many tries and demonstrations each memory holds, per environment."""
    with answering(output), typed():
        from dataclasses import asdict

        from silo_agent.config import SiloConfig

        config = SiloConfig.load(data)
        shown = []
        with daemon_stopped(config.data_dir):
            for path, memory in memories(config.data_dir):
                name = str(path.relative_to(config.data_dir))
                counts = memory.counts()
                shown.append({"file": name, "environments": [asdict(row) for row in counts]})
                show_result(output, f"{name}: {'empty' if not counts else ''}")
                for row in counts:
                    show_result(
                        output,
                        f"  {row.environment}: {row.explored} tries ({row.solved} solved, "
                        f"{row.failed} failed) and {row.demonstrations} demonstrations of "
                        f"{row.tasks} tasks",
                    )
        if not shown:
            say("no memory: nothing was explored or imported")
        succeed(output, {"buffers": shown})


@buffer_app.command("delete")
def buffer_delete(
    subject: Annotated[str | None, typer.Option(help="Whose data; everything made of it.")] = None,
    task: Annotated[
        tuple[str, int] | None, typer.Option(help="An environment and a task id.")
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Forget a subject or a task in every memory, and overwrite what was there.

    The principles that were made of it go too, edited ones as well. Finished work
    that is not released yet goes too: it is done again, and local training charged
    again. Adapters that were trained on it stay as they are.
    """
    with answering(output), typed():
        from silo_agent.config import SiloConfig
        from silo_agent.local_work.diagnosis import delete_reports
        from silo_agent.local_work.result_file import delete_results

        if (subject is None) == (task is None):
            raise CommandError(
                "name either --subject or --task", code="arguments", exit_code=Exit.ARGUMENTS
            )
        config = SiloConfig.load(data)
        with daemon_stopped(config.data_dir):
            deleted, principles = _forget(config.data_dir, subject, task)
            results = delete_results(config.data_dir)
            diagnoses = delete_reports(config.data_dir)
            personal = sorted(config.data_dir.glob("evolve/*/personal"))
        show_result(output, f"deleted {deleted} trajectories")
        if principles:
            show_result(output, f"deleted {principles} principle(s) that were made of them")
        if results:
            show_result(
                output,
                f"deleted {results} finished round(s) that were not released: they are worked on "
                "again, and local training is charged again",
            )
        if diagnoses:
            show_result(output, f"deleted {diagnoses} report(s) of `chorale-silo diagnose`")
        for directory in personal:
            say(f"{directory} may have been trained on them; delete it to start it over")
        succeed(
            output,
            {
                "deleted": deleted,
                "principles": principles,
                "results": results,
                "diagnoses": diagnoses,
                "personal": [str(path) for path in personal],
            },
        )


def _forget(data_dir: Path, subject: str | None, task: tuple[str, int] | None) -> tuple[int, int]:
    """How many trajectories and how many principles of a subject or of a task went."""
    from evolution.trajectory import Task

    deleted = principles = 0
    of = None if task is None else Task(environment=task[0], task_id=task[1])
    for _, memory in memories(data_dir):
        deleted += memory.delete_subject(subject or "") if of is None else memory.delete_task(of)
    for _, kept in principles_of(data_dir):
        principles += kept.delete_subject(subject or "") if of is None else kept.delete_task(of)
    return deleted, principles


def _chat(base_model: Path | None) -> ChatFormat:
    from evolution.model.causal_lm import load_tokenizer
    from evolution.rollout.conversation import ChatFormat

    if base_model is None:
        raise CommandError(
            "demonstrations become tokens of a base model, and silo.toml names none",
            code="no_base_model",
            exit_code=Exit.ARGUMENTS,
            next_step="set base_model in silo.toml",
        )
    try:
        tokenizer = load_tokenizer(base_model)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{base_model} has no usable tokenizer: {error}",
            code="tokenizer",
            exit_code=Exit.ARGUMENTS,
        ) from error
    return ChatFormat.from_tokenizer(tokenizer)
