"""A silo whose ledger and memory were put back to an older copy, and a coordinator that helps it.

The coordinator echoes nothing and refuses nothing; the peers alone are left. Not a failure: an
attempt that ends. Failures: a share that leaves an honest silo in an attempt with the rolled-back
one, a silo that is blamed for another's ledger, an honest cohort that cannot go on.
"""

import shutil

import numpy as np
import pytest

from secagg.errors import Check, VerificationError
from tests.kit.simulation.session_federation import (
    Federation,
    assert_usable,
    identity_of,
    nothing_leaves,
)

FILES = ("ledger", "state.json")


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path)
    yield made
    made.close()


def put_back(member, directory):
    """The process is stopped, the files are replaced, a new process starts."""
    member.end()
    member.ledger.close()
    for name in FILES:
        shutil.copy(directory / name, member.directory / name)
    member._start()


def copied(member, directory):
    directory.mkdir()
    for name in FILES:
        shutil.copy(member.directory / name, directory / name)
    return directory


def test_peers_leave_an_attempt_with_a_rolled_back_ledger(federation, tmp_path):
    victim = federation.names[0]
    honest = [federation[name] for name in federation.names[1:]]
    federation.attempt(identity_of(attempt=1)).sum()
    old = copied(federation[victim], tmp_path / "old")
    federation.attempt(identity_of(round_number=5)).sum()
    put_back(federation[victim], old)

    attempt = federation.attempt(identity_of(round_number=6))
    told = attempt.advertise()
    with nothing_leaves(*honest):
        for member in honest:
            with pytest.raises(VerificationError) as refused:
                member.tell(told[member.name])
            assert refused.value.check is Check.LEDGER_HEAD
            assert refused.value.silo == victim
            assert member.secrets_left() == 0
    # Restarted silos remember it too.
    for member in honest:
        member.crash()
    told = federation.attempt(identity_of(round_number=7)).advertise()
    for member in honest:
        with nothing_leaves(member), pytest.raises(VerificationError):
            member.tell(told[member.name])


def test_without_the_rolled_back_silo_the_others_go_on(federation, tmp_path):
    victim, *others = federation.names
    federation.attempt(identity_of(attempt=1)).sum()
    old = copied(federation[victim], tmp_path / "old")
    federation.attempt(identity_of(round_number=5)).sum()
    put_back(federation[victim], old)
    total = federation.attempt(identity_of(round_number=6), cohort=others).sum()
    np.testing.assert_array_equal(total, federation.expected(others))


def test_a_restart_with_its_own_files_is_no_rollback(federation):
    federation.attempt(identity_of(attempt=1)).sum()
    for member in federation.members.values():
        member.end()
        member.crash()
    assert_usable(federation, identity_of(round_number=5))
