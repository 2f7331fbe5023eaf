"""Connections that never make a call are counted, those that do are not."""

import itertools

import pytest

from server.rpc.strangers import MOST_CALLERS, Strangers


@pytest.fixture
def counted():
    return []


@pytest.fixture
def strangers(counted):
    return Strangers(counted.append)


def test_who_calls_is_no_stranger(strangers, counted):
    for number in range(200):
        strangers.connected()
        strangers.called(f"ipv4:127.0.0.1:{number}")
        strangers.called(f"ipv4:127.0.0.1:{number}")
    for _ in range(3):
        strangers.sum_up()
    assert counted == []


def test_who_never_calls_is_counted_once_and_not_before_a_minute(strangers, counted):
    for _ in range(5):
        strangers.connected()
    strangers.sum_up()
    assert counted == []
    for _ in range(3):
        strangers.sum_up()
    assert counted == [5]


def test_who_is_just_shaking_hands_is_not_counted(strangers, counted):
    for number in itertools.count():
        strangers.connected()
        strangers.sum_up()
        strangers.called(f"ipv4:127.0.0.1:{number}")
        if number == 5:
            break
    assert counted == []


def test_what_is_kept_of_callers_is_bounded(strangers):
    for number in range(MOST_CALLERS + 100):
        strangers.called(f"ipv4:127.0.0.1:{number}")
    assert len(strangers._callers) == MOST_CALLERS
