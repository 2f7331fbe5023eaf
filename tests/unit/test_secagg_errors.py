"""Errors carry a named check, and the package exports what it says."""

import pytest

import secagg
from secagg import client, server
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


@pytest.mark.parametrize("package", [secagg, client, server])
def test_exported_names_exist_and_are_sorted(package):
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
