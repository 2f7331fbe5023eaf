"""Whom the coordinator's configuration names as the advisor of advised rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import SecretStr

from server.config import CoordinatorConfig
from server.errors import ConfigurationError

if TYPE_CHECKING:
    # A coordinator without an advisor needs none of its packages.
    from server.advisor.endpoint import Endpoint

__all__ = ["configured_advisor"]


def configured_advisor(config: CoordinatorConfig) -> Endpoint | None:
    """The connection to it; None where nobody is named.

    Raises:
        ConfigurationError: One of url and model is given alone, or one of them cannot be used.
    """
    if config.advisor_url is None and config.advisor_model is None:
        return None
    if config.advisor_url is None or config.advisor_model is None:
        raise ConfigurationError("advisor_url and advisor_model go together: set both, or neither")
    from server.advisor.endpoint import Endpoint

    key = config.advisor_key()
    return Endpoint(
        config.advisor_url,
        config.advisor_model,
        takes_tools=config.advisor_tools,
        api_key=None if key is None else SecretStr(key),
    )
