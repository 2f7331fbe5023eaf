"""Errors carry a named check."""

import pytest

from secagg.errors import (
    Check,
    MalformedMessageError,
    ParameterError,
    SecAggError,
    UnexpectedMessageError,
    VerificationError,
)


@pytest.mark.parametrize(
    ("error", "check", "silo"),
    [
        (MalformedMessageError("text"), Check.MALFORMED, None),
        (UnexpectedMessageError("text", silo="a"), Check.UNEXPECTED_MESSAGE, "a"),
        (ParameterError("text"), Check.PARAMETER, None),
        (VerificationError(Check.NO_WRAP, "text", silo="b"), Check.NO_WRAP, "b"),
    ],
)
def test_every_error_names_its_check(error, check, silo):
    assert isinstance(error, SecAggError)
    assert (error.check, error.silo) == (check, silo)
    assert check.value in str(error)
    assert "text" in str(error)
    assert silo is None or silo in str(error)
