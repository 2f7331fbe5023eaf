"""The enrolment port follows the invites of a real database; what each port allows."""

import asyncio
import socket

import pytest

from chorale.v1 import enrolment_pb2_grpc
from lab.loopback import free_port
from server.metrics import CoordinatorMetrics
from server.pki.tls import ServerTls
from server.pki.trust import Trust
from server.rpc.access import AccessInterceptor, AccessPolicy
from server.rpc.ports import EnrolmentPort, enrolment_options, rounds_options
from server.store import Store
from tests.kit.server.tls import HOSTS

NOW = 1_000


@pytest.fixture
def store(tmp_path):
    opened = Store(f"sqlite:///{tmp_path / 'coordinator.db'}", create=True)
    yield opened
    opened.close()


def invite(store, silo_id, *, expires):
    store.invites.create(
        secret=silo_id.encode(), silo_id=silo_id, created_unix_s=1, expires_unix_s=expires
    )


def listens(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


def test_it_is_open_until_the_last_invite_is_spent_withdrawn_or_over(store, pki):
    number = free_port()
    trust = Trust.load(pki)
    tls = ServerTls(pki, trust, host_names=HOSTS)
    policy = AccessPolicy(trust=trust, federation=store.federation.current, silos=store.silos)
    now = [NOW]

    async def follow():
        port = EnrolmentPort(
            listen=f"127.0.0.1:{number}",
            service=enrolment_pb2_grpc.EnrolmentServiceServicer(),
            interceptor=AccessInterceptor(policy=policy, metrics=CoordinatorMetrics()),
            credentials=lambda: tls.credentials(require_client=False),
            invites=store.invites,
            open_files=1024,
            clock=lambda: now[0],
        )

        async def open_now():
            await port.look()
            return await asyncio.to_thread(listens, number)

        await port.require_free()
        assert not await open_now()
        invite(store, "a", expires=NOW + 10)
        invite(store, "b", expires=NOW + 20)
        assert await open_now()
        store.invites.withdraw("b")
        assert await open_now()
        now[0] = NOW + 10
        assert not await open_now()
        invite(store, "c", expires=NOW + 60)
        assert await open_now()
        found = store.invites.find(secret=b"c", silo_id="c")
        store.invites.spend(found, at_unix_s=now[0])
        assert not await open_now()
        invite(store, "d", expires=NOW + 60)
        assert await open_now()
        await port.close()
        assert not await asyncio.to_thread(listens, number)

    asyncio.run(follow())


@pytest.mark.parametrize("open_files", [256, 1024, 65536])
def test_both_ports_together_leave_files_for_the_process(open_files):
    name = "grpc.max_allowed_incoming_connections"
    taken = dict(rounds_options(open_files))[name] + dict(enrolment_options(open_files))[name]
    assert 0 < taken <= open_files * 5 // 8
    assert dict(enrolment_options(open_files))["grpc.max_receive_message_length"] < 1 << 17
