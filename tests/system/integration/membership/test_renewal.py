"""Renewing a certificate over real mutual TLS: cut anywhere, attacked, and while calls are running.

The coordinator's services, access control and TLS are the real ones, and so are the silo's line and
its renewal; a proxy of the silo's transport loses what a test wants lost.
"""

from __future__ import annotations

import threading

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from server.pki.authority import certificate_sha256
from silo_agent.errors import TransportError
from silo_agent.identity.identity import Identity, has_previous
from silo_agent.line.transport import Coordinator as Transport
from tests.kit.processes.renewing_silo import DAY, ask, reason, reason_on

pytestmark = pytest.mark.xdist_group("renewal")


@pytest.fixture(autouse=True)
def real_time(coordinator):
    yield
    coordinator.clock.offset_s = 0.0


def test_it_renews_at_half_life_and_the_old_certificate_ends(coordinator, silo):
    before = Identity.load(silo.directory)
    assert silo.renewal.step() > 0
    assert silo.line.asked == []
    issued = coordinator.counted("chorale_certificate_renewals_total")
    silo.renew_now()
    after = Identity.load(silo.directory)
    assert after.leaf.public_key() != before.leaf.public_key()
    assert after.signing_key.private_bytes_raw() == before.signing_key.private_bytes_raw()
    assert not has_previous(silo.directory)
    assert silo.row.certificate_sha256 == certificate_sha256(after.leaf)
    assert silo.row.next_certificate_sha256 is None
    assert reason(coordinator, after) == ""
    assert reason(coordinator, before) == "certificate_revoked"
    assert silo.counted("renewed") == 1
    assert coordinator.counted("chorale_certificate_renewals_total") == issued + 1
    assert any('"silo_certificate_renewed"' in line for line in coordinator.audit.tail(3))


def test_a_silo_that_hears_nothing_because_of_its_clock_is_told_so(silo):
    """gRPC says no more than that nobody answers."""
    assert silo.renewal._advice() == ""
    silo.clock.offset_s = -5 * DAY
    assert "not now by this machine's clock" in silo.renewal._advice()


def test_until_the_new_one_is_used_the_old_one_is_good_on_its_open_connection(coordinator, silo):
    old = Identity.load(silo.directory)
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, old.channel_credentials()
    ) as channel:
        assert reason_on(channel) == ""
        silo.line.lose_pings = 1
        silo.renew_now()
        # Stored here, pending there, used by nobody.
        assert silo.row.next_certificate_sha256 == certificate_sha256(silo.leaf)
        assert reason_on(channel) == ""
        assert silo.works()
        assert reason_on(channel) == "certificate_revoked"


def test_a_lost_answer_locks_nobody_out(coordinator, silo):
    before = silo.leaf
    silo.line.lose_renewals = 3
    for _ in range(3):
        silo.renew_now()
        assert silo.leaf == before
        assert silo.works()
    assert silo.counted("failed") == 3
    silo.renew_now()
    assert silo.leaf != before
    assert silo.works()
    keys = {x509.load_der_x509_csr(csr).public_key().public_numbers() for csr in silo.line.asked}
    assert len(keys) == 4


class Killed(BaseException):
    """kill -9: nothing of the process runs after it, no handler either."""


@pytest.mark.parametrize(
    "where",
    [
        "silo_agent.identity.identity.Identity.store",
        "silo_agent.identity.identity.replace_file",
        "silo_agent.identity.identity.sync_directory",
        "silo_agent.identity.renewal.Renewal._take",
        "silo_agent.identity.renewal.Renewal._try_newest",
        "silo_agent.identity.renewal.forget_previous",
    ],
)
def test_a_silo_killed_anywhere_goes_on_after_its_restart(silo, monkeypatch, where):
    def kill(*_arguments):
        raise Killed

    silo.clock.offset_s += 16 * DAY
    with monkeypatch.context() as patch:
        patch.setattr(where, kill)
        with pytest.raises(Killed):
            silo.renewal.step()
    silo.crash()
    # Whatever it has now, the coordinator takes it; and it renews to the end.
    assert silo.works()
    silo.renewal.step()
    silo.clock.offset_s += 1200
    silo.renewal.step()
    assert not has_previous(silo.directory)
    assert silo.works()
    assert silo.row.certificate_sha256 == certificate_sha256(silo.leaf)
    assert silo.row.next_certificate_sha256 is None


@pytest.mark.parametrize("cut", [1, 2])
def test_a_crash_between_the_renames_is_healed(silo, monkeypatch, cut):
    real, left = type(silo.directory).rename, [cut]

    def rename(path, target):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return real(path, target)

    silo.clock.offset_s += 16 * DAY
    with monkeypatch.context() as patch:
        patch.setattr(type(silo.directory), "rename", rename)
        with pytest.raises(Killed):
            silo.renewal.step()
    silo.crash()
    assert silo.works()
    silo.renewal.step()
    assert silo.works()
    assert silo.row.next_certificate_sha256 is None


def test_a_coordinator_that_dies_before_its_commit_has_issued_nothing(
    coordinator, silo, monkeypatch
):
    before = silo.row

    def kill(*_arguments, **_details):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(coordinator.audit, "append", kill)
        silo.renew_now()
    assert silo.row == before
    assert silo.works()
    silo.renew_now()
    assert silo.row.certificate_sha256 == certificate_sha256(silo.leaf) != before.certificate_sha256


def test_a_new_certificate_that_was_overtaken_gives_way_to_the_old_one(coordinator, silo):
    """An older request that arrives late replaces the pending certificate at the coordinator."""
    old = Identity.load(silo.directory)
    silo.line.lose_pings = 1
    silo.renew_now()
    assert has_previous(silo.directory)
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, old.channel_credentials()
    ) as channel:
        ask(channel, silo.silo_id, old)
    silo.renew_now()
    assert Identity.load(silo.directory).leaf == old.leaf
    assert silo.works()
    silo.renew_now()
    assert silo.leaf != old.leaf
    assert silo.works()


def test_an_unreachable_coordinator_costs_time_only(silo):
    identity = Identity.load(silo.directory)
    silo.real.close()
    silo.real = Transport(
        address="127.0.0.1:1", credentials=identity.channel_credentials(), patience_s=0.0
    )
    silo.line.real = silo.real
    silo.clock.offset_s += 16 * DAY
    pauses = []
    for _ in range(9):
        pauses.append(silo.renewal.step())
        silo.clock.offset_s += 4000
    assert silo.counted("failed") == 9
    assert pauses[0] == pytest.approx(30, abs=5)
    assert all(pause <= 60 for pause in pauses)
    assert silo.leaf == identity.leaf


def test_calls_that_run_finish_and_new_ones_use_the_new_certificate(coordinator, silo):
    """Eight threads call all the time while the certificate is renewed; not one call fails."""
    stop, failures, calls = threading.Event(), [], [0]

    def work():
        while not stop.is_set():
            try:
                silo.real.poll("", wait_s=0)
                calls[0] += 1
            except TransportError as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            silo.renew_now()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert silo.counted("renewed") == 5
    assert failures == []
    assert calls[0] > 5
    silo.real.sweep()
    assert not silo.real._line._leaving


def test_nothing_secret_is_said(silo, capfd):
    silo.renew_now()
    said = "".join(capfd.readouterr())
    identity = Identity.load(silo.directory)
    for key in (identity.leaf_key, identity.signing_key):
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        assert pem.splitlines()[1] not in said
    assert "certificate_renewed" in said
