"""Rows for tests of the store."""

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.chain.record import AdapterRecord
from secagg.descriptor import AggregationId
from secagg.roster import Roster, RosterEntry, sign_roster
from server.states import RunState
from server.store.messages import StoredMessage
from server.store.rounds import AttemptPlace
from server.store.silos import SiloRow
from tests.kit.secagg.secagg_samples import make_descriptor, make_roster, signed_descriptor

NAMED = ("silo-001", "silo-003")
FAMILIES = {"silo-001": ("maze",), "silo-003": ()}


def make_run(store, token="t", run_id="run-1"):
    return store.runs.create(
        run_id=run_id,
        name="demo",
        plan=b"plan",
        plan_sha256=b"\x05" * 32,
        submit_token=token,
        state=RunState.RUNNING,
    )


def silo_row(silo_id="hospital-a", **changes):
    values = {
        "silo_id": silo_id,
        "spiffe_uri": f"spiffe://oncology/silo/{silo_id}",
        "verification_key": b"\x01" * 32,
        "certificate_sha256": b"\x02" * 32,
        "certificate_expiry_unix_s": 10,
        "enrolled_unix_s": 5,
    }
    return SiloRow(**{**values, **changes})


def enrol(store, names, **changes):
    """Silos that joined, each with a certificate of its own."""
    for name in names:
        own = {"certificate_sha256": name.encode().rjust(32), **changes}
        store.silos.enrol(silo_row(name, **own))


def at(round_number, attempt, step=0, run_id="run-1"):
    return AttemptPlace(run_id=run_id, round=round_number, step=step, attempt=attempt)


def record(number, step=0, **changes):
    values = {
        "run_id": "run-1",
        "round": number,
        "step": step,
        "kind": "skipped" if number else "initial",
        "adapter_sha256": b"\x07" * 32,
        "plan_sha256": b"\x05" * 32,
        "base_model_sha256": b"\x06" * 32,
        "parent_sha256": b"\x07" * 32 if number else b"",
        "record_parent_sha256": b"\x08" * 32 if number else b"",
    }
    return AdapterRecord(**{**values, **changes}).sign(Ed25519PrivateKey.generate())


def signed_roster(epoch, silos=("a", "b", "c")):
    entries = tuple(
        RosterEntry(
            silo_id=name,
            spiffe_uri=f"spiffe://f/silo/{name}",
            verification_key=bytes([index + 1]) * 32,
        )
        for index, name in enumerate(silos)
    )
    roster = Roster(
        federation="f", epoch=epoch, colluding=1, coordinator_key=b"\x63" * 32, entries=entries
    )
    return sign_roster(roster, Ed25519PrivateKey.from_private_bytes(b"\x01" * 32))


def signed(attempt=1, round_number=1, step=0):
    base = signed_descriptor(make_descriptor(make_roster(4, 1)))
    identity = AggregationId(run_id="run-1", round=round_number, step=step, part=0, attempt=attempt)
    return signed_descriptor(replace(base.descriptor, identity=identity))


def message(phase="advertise_keys", silo_id="silo-000", body=b"public", sealed=None):
    return StoredMessage(phase=phase, silo_id=silo_id, body=body, sealed=sealed)
