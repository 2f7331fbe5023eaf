"""How a doctor's command answers: the first failure with its fix, or that nothing failed."""

from __future__ import annotations

from ops.cli.envelope import CommandError, Exit, Format, show_result, succeed
from ops.doctor.checkup import Checkup, Outcome

__all__ = ["answer_checkup"]


def answer_checkup(output: Format, found: Checkup) -> None:
    """Say what a checkup ended with; its findings were told one by one.

    Raises:
        CommandError: A step failed.
    """
    broken = found.first_failed
    if broken is not None:
        raise CommandError(
            f"{found.count(Outcome.FAILED)} of {len(found.findings)} steps failed, first: "
            f"{broken.name}: {broken.found}",
            code=f"doctor_{broken.name}",
            exit_code=Exit.CONNECT if found.only_connection else Exit.SERVER,
            next_step=broken.fix,
            data=found.as_data(),
        )
    show_result(output, f"nothing failed, {found.count(Outcome.WARNING)} warning(s)")
    succeed(output, found.as_data())
