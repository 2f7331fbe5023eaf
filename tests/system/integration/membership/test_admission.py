"""Who calls is looked up beside the event loop: one slow look keeps nobody else waiting."""

import threading
from concurrent.futures import ThreadPoolExecutor

from chorale.v1 import admin_pb2


def test_a_database_that_is_slow_for_one_silo_is_not_for_others(coordinator, admin, silo):
    looked, go_on = threading.Event(), threading.Event()
    find = coordinator.store.silos.get

    def slow(silo_id):
        if silo_id == silo.silo_id:
            looked.set()
            assert go_on.wait(60)
        return find(silo_id)

    coordinator.store.silos.get = slow
    try:
        with ThreadPoolExecutor(1) as callers:
            waiting = callers.submit(silo.works)
            assert looked.wait(30)
            assert admin.GetFederation(admin_pb2.GetFederationRequest(), timeout=20).name
            assert not waiting.done()
            go_on.set()
            assert waiting.result(60)
    finally:
        go_on.set()
        coordinator.store.silos.get = find


def test_answers_are_counted_in_bytes(coordinator, admin):
    before = coordinator.counted("chorale_sent_bytes_total")
    answer = admin.GetFederation(admin_pb2.GetFederationRequest(), timeout=20)
    assert coordinator.counted("chorale_sent_bytes_total") == before + answer.ByteSize()
