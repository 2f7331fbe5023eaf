"""``chorale-silo budget``: what this silo's data set has spent, and the file that carries it on.

Covered: the table, ``export``. Not covered: the figures (``silo_agent/books/budget.py``), the file
(``silo_agent/books/spent.py``), and what ``join`` does with it (``silo_agent/cli/spent.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering, require_nothing_given

__all__ = ["budget_app"]

budget_app = typer.Typer(invoke_without_command=True, pretty_exceptions_enable=False)


@budget_app.callback()
def budget(
    context: typer.Context, *, data: Data = DEFAULT_DATA, output: Output = Format.TEXT
) -> None:
    """Epsilon spent, reserved and left for each kind of unit; works while the daemon runs.

    SPENT: everything charged so far; what the cap is compared with.

    RESERVED: the part of it that is charged for local trainings of rounds
    that were not uploaded yet. It is never given back.

    LEFT: the cap less what is spent.

    CARRIED FROM BEFORE: the part of it that the data set had spent in another
    data directory, given with `join --spent`.

    A ledger that is damaged, lost or older than this silo remembers is refused.
    """
    with answering(output):
        if context.invoked_subcommand is not None:
            require_nothing_given(context, "budget")
            return
        from dataclasses import asdict

        from silo_agent.books.budget import read_budget
        from silo_agent.cli.budget_table import budget_lines
        from silo_agent.config import SiloConfig
        from silo_agent.policy.document import Policy

        config = SiloConfig.load(data)
        privacy = Policy.load(config.policy_file).privacy
        found = read_budget(config.data_dir, delta=privacy.delta, caps=privacy.caps())
        show_result(output, *budget_lines(found))
        succeed(output, asdict(found))


@budget_app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="A new file, readable by its owner alone.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write what this data set has spent, signed, for `join --spent` elsewhere.

    The file holds whole curves and every count, because an epsilon alone does
    not add up with another. It works while the daemon runs; what is charged
    later is not in it, so make it last, or take the spent.json of `leave`.
    """
    with answering(output):
        import time

        from silo_agent.books.spent import spent_here, write_spent
        from silo_agent.cli.spent import said_of
        from silo_agent.config import SiloConfig
        from silo_agent.identity.identity import Identity

        if file.exists():
            raise CommandError(
                f"{file} exists",
                code="file_exists",
                exit_code=Exit.ARGUMENTS,
                next_step="name a new file: one of another silo must not be replaced by mistake",
            )
        place = SiloConfig.load(data).data_dir
        found = spent_here(place, Identity.load(place), at_unix_s=int(time.time()))
        if found is None:
            raise CommandError(
                "this data set has spent nothing here: there is no ledger yet",
                code="nothing_spent",
                exit_code=Exit.ARGUMENTS,
                hint="a new data directory needs no file from here",
            )
        write_spent(file, found)
        show_result(output, f"wrote {file}", *said_of(found))
        say(f"next: chorale-silo join INVITE --spent {file} --spent-key {found.fingerprint}")
        succeed(output, {"file": str(file), "key_fingerprint": found.fingerprint})
