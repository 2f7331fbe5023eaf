"""Records of suite v2: the reference's bytes, signatures and links are the product's."""

import json

import pytest

from federation.chain.record import AdapterRecord, RecordPart, verify_chain
from tests.adversary.vectors import hybrid_generator as generator
from tests.adversary.vectors.secagg_documents import made

RECORDS = json.loads(generator.RECORDS.read_text(encoding="utf-8"))


def record_of(item):
    parts = [made(RecordPart, part) for part in item["parts"]]
    return made(AdapterRecord, item | {"parts": parts})


def test_the_file_is_what_the_generator_writes():
    assert generator.RECORDS.read_text() == generator.written(generator.records())


@pytest.mark.parametrize("item", RECORDS, ids=lambda item: item["kind"])
def test_a_record_is_signed_and_named_as_in_the_vectors(item):
    record = record_of(item)
    assert record.signed_bytes().hex() == item["signed_bytes"]
    assert record.sha256.hex() == item["record_sha256"]


def test_the_records_are_a_chain():
    records = [record_of(item) for item in RECORDS]
    head = verify_chain(records, generator.verification_key("coordinator"))
    assert head == records[-1]
    assert {record.kind for record in records} == {"initial", "aggregated", "skipped", "rollback"}
