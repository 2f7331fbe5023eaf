"""``chorale-silo facts``: what this silo publishes about itself, and the operator's part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from ops.cli.moment import duration_s, shown
from silo_agent.cli.program import DEFAULT_DATA, Data, answering, require_nothing_given

if TYPE_CHECKING:
    from federation.membership.facts import FreeGpu
    from silo_agent.views.facts import Fact

__all__ = ["facts_app"]

facts_app = typer.Typer(invoke_without_command=True, pretty_exceptions_enable=False)


@facts_app.callback()
def facts(
    context: typer.Context, *, data: Data = DEFAULT_DATA, output: Output = Format.TEXT
) -> None:
    """What is published about this silo, what it comes from, and what is not published.

    The policy lists what is: [facts] publish. By itself it lists nothing. Facts
    are words of short lists and whole numbers, and none depends on data. The
    coordinator and whoever plans its rounds read them.
    """
    with answering(output):
        if context.invoked_subcommand is not None:
            require_nothing_given(context, "facts")
            return
        from silo_agent.config import SiloConfig
        from silo_agent.views.facts import read_facts

        config = SiloConfig.load(data)
        found = read_facts(config)
        for published, heading in (
            (True, "published"),
            (False, "not published"),
        ):
            lines = [_line(fact) for fact in found.facts if fact.published is published]
            show_result(output, f"{heading}:", *(lines or ["  nothing"]))
        if found.published is None:
            say(f"[facts] publish in {config.policy_file} lists what is; restart the daemon then")
        succeed(output, found.as_data())


@facts_app.command("set")
def set_facts(
    *,
    queue: Annotated[
        int | None,
        typer.Option(help="Jobs before this federation's on this machine.", show_default=False),
    ] = None,
    free_gpu: Annotated[
        str | None,
        typer.Option(
            "--free-gpu", help="What is free: none, some, most or all.", show_default=False
        ),
    ] = None,
    holds_for: Annotated[
        str, typer.Option("--for", help="How long that holds, as 30m, 2h or 7d.")
    ] = "24h",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Say how busy this machine is, for as long as --for says.

    What is not named stays as it was. A running daemon publishes it within
    seconds, if the policy lists it.
    """
    with answering(output):
        import time

        from silo_agent.books.facts import OperatorsWord
        from silo_agent.config import SiloConfig
        from silo_agent.policy.document import Policy

        if queue is None and free_gpu is None:
            raise _wrong("nothing was said: name --queue, --free-gpu or both")
        config = SiloConfig.load(data)
        _require_sayable(queue, free_gpu, holds_for)
        word = OperatorsWord(config.data_dir).say(
            queue=queue,
            free_gpu=_gpu(free_gpu),
            now_unix_s=time.time(),
            for_s=duration_s(holds_for, "--for"),
        )
        said = {
            "queue": (word.queue, word.queue_until_unix_s),
            "free_gpu": (word.free_gpu, word.free_gpu_until_unix_s),
        }
        listed = Policy.load(config.policy_file).facts.publish
        for name, (value, until) in said.items():
            if value is not None:
                show_result(output, f"{name} is {value} until {shown(until)}")
                if name not in listed:
                    say(f"it is not published: [facts] publish does not list {name}")
        succeed(
            output,
            {
                name: None if value is None else {"value": value, "until_unix_s": until}
                for name, (value, until) in said.items()
            },
        )


@facts_app.command("clear")
def clear_facts(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Take back what was said with `facts set`."""
    with answering(output):
        from silo_agent.books.facts import OperatorsWord
        from silo_agent.config import SiloConfig

        there = OperatorsWord(SiloConfig.load(data).data_dir).clear()
        show_result(output, "taken back" if there else "nothing had been said")
        succeed(output, {"cleared": there})


def _line(fact: Fact) -> str:
    value = fact.value
    if value is None:
        text = "nothing to say"
    elif fact.fact == "earliest_start_unix_s":
        text = shown(int(value))
    else:
        text = str(value)
    until = "" if fact.until_unix_s is None else f", until {shown(fact.until_unix_s)}"
    return f"  {fact.fact:<22} {text:<21} {fact.source}{until}"


def _gpu(word: str | None) -> FreeGpu | None:
    from federation.membership.facts import FreeGpu

    return None if word is None else FreeGpu(word)


def _require_sayable(queue: int | None, free_gpu: str | None, holds_for: str) -> None:
    """Say which option is wrong, before anything is written."""
    from federation.membership.facts import MAX_QUEUE, FreeGpu
    from silo_agent.books.facts import LONGEST_WORD_S

    if queue is not None and not 0 <= queue <= MAX_QUEUE:
        raise _wrong(f"--queue is 0 to {MAX_QUEUE}")
    if free_gpu is not None and free_gpu not in set(FreeGpu):
        raise _wrong(f"--free-gpu is one of {', '.join(FreeGpu)}")
    if not 0 < duration_s(holds_for, "--for") <= LONGEST_WORD_S:
        raise _wrong(f"--for is at most {LONGEST_WORD_S // 86_400}d")


def _wrong(text: str) -> CommandError:
    return CommandError(
        text,
        code="arguments",
        exit_code=Exit.ARGUMENTS,
        next_step="chorale-silo facts set --help",
    )
