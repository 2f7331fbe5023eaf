"""Which failed calls are a refusal of the message, and which may pass."""

import time
from types import SimpleNamespace

import grpc
import pytest

from secagg.descriptor import AggregationId
from secagg.messages import ConsistencySignature
from silo_agent.errors import TransportError
from silo_agent.transport import Coordinator

IDENTITY = AggregationId(run_id="run-1", round=4, step=0, part=0, attempt=1)
SIGNATURE = ConsistencySignature(silo_id="silo-000", signature=bytes(64))
CODE = grpc.StatusCode


class Failed(grpc.RpcError):
    """A call that ends with a code, and with the coordinator's reason if it gave one."""

    def __init__(self, code, reason):
        self._code, self._reason = code, reason

    def code(self):
        return self._code

    def details(self):
        return "detail"

    def trailing_metadata(self):
        return (("chorale-reason", self._reason),) if self._reason else ()


@pytest.mark.parametrize(
    ("code", "reason", "refused"),
    [
        (CODE.FAILED_PRECONDITION, "wrong_phase", True),
        (CODE.INVALID_ARGUMENT, "malformed_message", True),
        (CODE.PERMISSION_DENIED, "certificate_revoked", True),
        # Away, full or broken: the same message may be taken later.
        (CODE.UNAVAILABLE, "", False),
        (CODE.DEADLINE_EXCEEDED, "", False),
        (CODE.RESOURCE_EXHAUSTED, "storage_full", False),
        (CODE.INTERNAL, "internal", False),
        (CODE.DATA_LOSS, "audit_broken", False),
        # Something on the way said so, not the coordinator.
        (CODE.FAILED_PRECONDITION, "", False),
        (CODE.PERMISSION_DENIED, "", False),
    ],
)
def test_a_refusal_is_a_verdict_of_the_coordinator_on_the_message(
    monkeypatch, code, reason, refused
):
    clock = iter(range(0, 1000, 100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    made = Coordinator(
        address="localhost:1", credentials=grpc.ssl_channel_credentials(), patience_s=5.0
    )

    def fail(_request, timeout):
        assert timeout > 0
        raise Failed(code, reason)

    made._stub = SimpleNamespace(CheckConsistency=fail)
    with pytest.raises(TransportError, match=code.name) as error:
        made.check_consistency(IDENTITY, SIGNATURE)
    assert error.value.refused is refused
    assert error.value.reason == reason
    made.close()
