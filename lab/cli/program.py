"""What every command of ``chorale-lab`` shares: what a failure of the cores means.

The contract of every command is ``ops/cli/envelope.py``'s.
"""

from __future__ import annotations

from ops.cli.envelope import CommandError, Exit, Program

__all__ = ["answering"]


def _known(error: Exception) -> CommandError | None:
    # Imported only when something went wrong: the packages behind them are not free to load.
    from dp.errors import PrivacyError
    from evolution.errors import BaseModelError
    from federation.errors import FederationError, LogSettingError, PlanError
    from secagg.errors import SecAggError

    codes: dict[type[Exception], str] = {
        BaseModelError: "base_model",
        LogSettingError: "log_setting",
        PlanError: "plan_refused",
        FederationError: "federation_refused",
        PrivacyError: "privacy_refused",
        SecAggError: "check_failed",
    }
    for kind, code in codes.items():
        if isinstance(error, kind):
            return CommandError(str(error), code=code, exit_code=Exit.ARGUMENTS)
    return None


answering = Program(name="chorale-lab", known=_known, package="chorale[lab]").answering
