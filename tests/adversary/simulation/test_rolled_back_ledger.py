"""A silo whose ledger and memory were put back to an older copy, and a coordinator that helps it.

The coordinator echoes nothing and refuses nothing; the peers alone are left. Not a failure: an
attempt that ends. Failures: a share that leaves an honest silo in an attempt with the rolled-back
one, a silo that is blamed for another's ledger, an honest cohort that cannot go on.

Attack 19: from version 2 on the newest debit rides beside the head, and each upload names its own.
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


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def federation(tmp_path, request):
    made = Federation(tmp_path, suite=request.param)
    yield made
    made.close()


@pytest.fixture
def hybrid(tmp_path):
    made = Federation(tmp_path, suite=2)
    yield made
    made.close()


def put_back(member, directory):
    """The process is stopped, the files are replaced, a new process starts."""
    member.end()
    member.ledger.close()
    for name in FILES:
        (member.directory / name).unlink(missing_ok=True)
        if (directory / name).exists():
            shutil.copy(directory / name, member.directory / name)
    member._start()


def copied(member, directory):
    directory.mkdir(exist_ok=True)
    for name in FILES:
        # Before the first attempt there is no memory of peers.
        if (member.directory / name).exists():
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


def refused_by_peers(federation, attempt, victim, *checks):
    """Every honest silo leaves the attempt, for one of these reasons, and blames the victim."""
    told = attempt.advertise()
    honest = [federation[name] for name in federation.names if name != victim]
    with nothing_leaves(*honest):
        for member in honest:
            with pytest.raises(VerificationError) as caught:
                member.tell(told[member.name])
            assert caught.value.check in checks
            assert caught.value.silo == victim
            assert member.secrets_left() == 0


@pytest.mark.parametrize("joins", [0, 1, 40], ids=["at once", "one unseen", "forty unseen"])
def test_a19d_a_ledger_put_back_between_r0_and_r2_hides_one_debit_and_no_second(
    hybrid, tmp_path, joins
):
    """Attack 19: thirty rounds; each time the ledger is put back to before the upload's charge.

    Without debit heads every one of the thirty sums would come out with one charge on the disk:
    each new R0 is a record more, so the head of R0 always rises. The header names the charge.
    """
    victim = hybrid.names[0]
    hybrid.attempt(identity_of(round_number=3)).sum()
    released = 0
    for number in range(30):
        for unseen in range(joins if number == 1 else 0):
            # Only the victim is asked; its ledger grows by a record each time.
            alone = hybrid.attempt(identity_of(2, attempt=unseen, run=f"hidden-{unseen}"))
            hybrid[victim].open(alone.descriptor)
        attempt = hybrid.attempt(identity_of(round_number=4 + number))
        if number:
            checks = (Check.DEBIT_HEAD, Check.LEDGER_HEAD)
            refused_by_peers(hybrid, attempt, victim, *checks)
            continue
        told = attempt.advertise()
        old = copied(hybrid[victim], tmp_path / "between R0 and R2")
        attempt.unmask(attempt.agree(attempt.upload(attempt.share(told))))
        released += 1
        put_back(hybrid[victim], old)
    assert released == 1


def test_a19e_a_ledger_that_grew_back_unseen_is_refused_at_the_second_attempt(hybrid, tmp_path):
    """Attack 19: rolled back, then grown past the number seen by attempts that no peer saw."""
    victim = hybrid.names[0]
    hybrid.attempt(identity_of(attempt=1)).sum()
    old = copied(hybrid[victim], tmp_path / "old")
    hybrid.attempt(identity_of(round_number=5)).sum()
    seen = hybrid[victim].ledger.head()
    put_back(hybrid[victim], old)
    for unseen in range(9):
        alone = hybrid.attempt(identity_of(2, attempt=unseen, run="hidden"))
        hybrid[victim].open(alone.descriptor)
    assert hybrid[victim].ledger.head()[0] > seen[0]
    attempt = hybrid.attempt(identity_of(round_number=6))
    refused_by_peers(hybrid, attempt, victim, Check.DEBIT_HEAD)
    # Restarted silos remember it, and it is never believed again.
    for name in hybrid.names[1:]:
        hybrid[name].crash()
    attempt = hybrid.attempt(identity_of(round_number=7))
    refused_by_peers(hybrid, attempt, victim, Check.LEDGER_HEAD, Check.DEBIT_HEAD)
    others = hybrid.names[1:]
    total = hybrid.attempt(identity_of(round_number=8), cohort=others).sum()
    np.testing.assert_array_equal(total, hybrid.expected(others))


def test_a19f_in_the_first_suite_such_a_ledger_is_believed(tmp_path):
    """Attack 19, NOT prevented in suite v1: its bundles carry no debit. SECURITY.md says so."""
    federation = Federation(tmp_path, suite=1)
    victim = federation.names[0]
    federation.attempt(identity_of(attempt=1)).sum()
    old = copied(federation[victim], tmp_path / "old")
    federation.attempt(identity_of(round_number=5)).sum()
    put_back(federation[victim], old)
    for unseen in range(9):
        alone = federation.attempt(identity_of(2, attempt=unseen, run="hidden"))
        federation[victim].open(alone.descriptor)
    total = federation.attempt(identity_of(round_number=6)).sum()
    np.testing.assert_array_equal(total, federation.expected(federation.names))
    federation.close()
