"""``chorale adapter`` reads the whole chain, however many pages it has."""

from types import SimpleNamespace

import pytest

from chorale.v1 import admin_pb2, aggregation_pb2
from federation.wire import RECORDS_PER_PAGE
from server.cli.adapter import _records


@pytest.mark.parametrize(
    ("length", "calls"),
    [(1, 1), (RECORDS_PER_PAGE, 2), (RECORDS_PER_PAGE + 1, 2), (3 * RECORDS_PER_PAGE - 1, 3)],
)
def test_every_page_is_read(length, calls):
    chain = [aggregation_pb2.AdapterRecord(round=number) for number in range(length)]
    asked = []

    def answer(request, timeout):
        asked.append(request.from_position)
        page = chain[request.from_position : request.from_position + RECORDS_PER_PAGE]
        return admin_pb2.ListAdaptersResponse(records=page)

    assert _records(SimpleNamespace(ListAdapters=answer), "run-1") == chain
    assert asked == [RECORDS_PER_PAGE * number for number in range(calls)]
