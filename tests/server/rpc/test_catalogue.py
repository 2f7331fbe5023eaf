"""Every error has an answer, and an unforeseen one says nothing."""

import inspect

import grpc
import pytest

import dp.errors
import federation.errors
import secagg.errors
import server.errors
from server.errors import Reason
from server.rpc.catalogue import CATALOGUE, describe


def error_types(module, base):
    return [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, base) and kind.__module__ == module.__name__
    ]


def test_every_coordinator_error_has_an_entry_of_its_own():
    missing = [
        kind
        for kind in error_types(server.errors, server.errors.CoordinatorError)
        if kind not in CATALOGUE
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("module", "base"),
    [
        (secagg.errors, secagg.errors.SecAggError),
        (federation.errors, federation.errors.FederationError),
        (dp.errors, dp.errors.PrivacyError),
    ],
)
def test_every_core_error_inherits_an_entry(module, base):
    for kind in error_types(module, base):
        assert any(parent in CATALOGUE for parent in kind.__mro__)


def test_hints_are_ascii_because_metadata_is():
    for entry in CATALOGUE.values():
        assert entry.hint.isascii()
        assert entry.hint.isprintable()
        assert entry.reason.value.isascii()


def test_reasons_are_all_in_use():
    used = {entry.reason for entry in CATALOGUE.values()}
    assert used == set(Reason)


def test_the_nearest_type_wins():
    answer = describe(server.errors.SpentInviteError("used before"))
    assert answer.reason is Reason.INVITE_SPENT
    assert answer.text == "used before"
    assert describe(secagg.errors.MalformedMessageError("x")).reason is Reason.MALFORMED_MESSAGE


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("secret"), server.errors.StoreError("postgres://u:secret@h")]
)
def test_internal_errors_say_nothing(error):
    answer = describe(error)
    assert answer.code is grpc.StatusCode.INTERNAL
    assert "secret" not in answer.text
    assert not answer.public


def test_text_is_bounded():
    assert len(describe(server.errors.RunError("x" * 100_000)).text) == 1000
