"""The judge of the kill matrix: silent about an honest round, loud about each kind of harm.

Not covered here: transcripts, logs, ledgers and files, which their own verifiers judge.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from secagg.descriptor import AggregationId
from server.store.aggregations import AggregationOutcome
from tests.system.chaos.cells import CELLS, REAL_TRAINING
from tests.system.chaos.drive import Kill
from tests.system.chaos.evidence import Evidence, SiloEvidence
from tests.system.chaos.verdict import Judge

SILOS = ("silo-a", "silo-b", "silo-c", "silo-d")
IDENTITY = AggregationId(run_id="run", round=1, step=0, part=0, attempt=1)
PLACE = dict(zip(("run", "round", "step", "part", "attempt"), IDENTITY.fields(), strict=True))
OTHER = {**PLACE, "attempt": 2}
RECORD = SimpleNamespace(
    round=1, kind="aggregated", survivors=SILOS, sha256=b"r" * 32, adapter_sha256=b"a" * 32
)


def adopted(sha256=RECORD.sha256):
    details = {
        "round": 1,
        "record_sha256": sha256.hex(),
        "adapter_sha256": RECORD.adapter_sha256.hex(),
    }
    return {"event": "record_adopted", "details": details}


def uploaded(digest="00"):
    return {"what": "uploaded", "identity": list(IDENTITY.fields()), "masked_sha256": digest}


def revealed(self_seed, mask_key=()):
    identity = list(IDENTITY.fields())
    kinds = {"self_seed": list(self_seed), "mask_key": list(mask_key)}
    return {"what": "revealed", "identity": identity, **kinds}


def opened(survivors=SILOS, sum_sha256="ff"):
    identity = list(IDENTITY.fields())
    return {"identity": identity, "survivors": list(survivors), "sum_sha256": sum_sha256}


def attempt(**changed):
    facts = {
        "identity": IDENTITY,
        "folded": SILOS,
        "survivors": SILOS,
        "outcome": AggregationOutcome.RELEASED,
    }
    return SimpleNamespace(**{**facts, **changed})


def counted(*phases):
    times = tuple(SimpleNamespace(phase=phase) for phase in phases)
    return SimpleNamespace(run_id="run", round=1, step=0, attempt=1, phases=times)


def honest():
    silo = SiloEvidence(
        directory=Path(),
        ledger=({"kind": "spent", **PLACE}, {"kind": "signed_r3", **PLACE}),
        audit=(adopted(),),
        noted=(uploaded(), revealed(SILOS)),
        head={},
    )
    return Evidence(
        silos=dict.fromkeys(SILOS, silo),
        audit=(),
        opened=(opened(),),
        attempts=(attempt(),),
        messages={IDENTITY: ()},
        rounds=(counted("training", "masked_input"),),
        heads=(),
        members={},
    )


def faults(
    evidence,
    record=RECORD,
    *,
    name="coordinator.R4 unmask.opened",
    victim="coordinator",
    cell=None,
):
    cell = cell or next(cell for cell in CELLS if cell.name == name)
    kill = Kill(cell=cell, round=1, victim=victim, fell_at=1.0)
    drive = SimpleNamespace(run_id="run", silos=SILOS, kills=(kill,))
    records = SimpleNamespace(list=lambda _run_id: (record,))
    judge = Judge(drive, evidence, SimpleNamespace(records=records))
    # A real run's transcript: not part of this evidence.
    judge._proven = lambda _kill, _record: iter(())
    return judge.faults(kill)


def with_silo(**changed):
    evidence = honest()
    silos = {**evidence.silos, "silo-b": replace(evidence.silos["silo-b"], **changed)}
    return replace(evidence, silos=silos)


def test_an_honest_round_has_no_fault():
    assert faults(honest()) == []


def test_a_silo_whose_work_failed_without_being_killed_is_a_fault_of_the_run(tmp_path):
    loopback = SimpleNamespace(log=lambda silo_id: '{"event": "explore_failed"}\n' * 2)
    drive = SimpleNamespace(run_id="run", silos=SILOS[:1], kills=(), loopback=loopback)
    judge = Judge(drive, honest(), SimpleNamespace(records=SimpleNamespace(list=lambda _id: ())))
    assert list(judge._work()) == [f"{SILOS[0]} said explore_failed 2 times"]


SPENT, SIGNED = {"kind": "spent", **PLACE}, {"kind": "signed_r3", **PLACE}
TRAINED = {"kind": "trained", "round": 1}
BOTH = "both kinds of shares of silo-c"


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (with_silo(ledger=(SIGNED,)), "silo-b sent a vector that was not charged"),
        (with_silo(ledger=(SIGNED,), noted=()), "silo-b sent a vector that was not charged"),
        (with_silo(ledger=(SPENT, SPENT, SIGNED)), "charged 2 times"),
        (with_silo(ledger=(TRAINED, TRAINED, SPENT, SIGNED)), "charged for 2 trainings"),
        (with_silo(noted=(uploaded("00"), uploaded("01"), revealed(SILOS))), "sent 2 vectors"),
        (with_silo(ledger=(SPENT, {"kind": "signed_r3", **OTHER})), "silo-b signed survivors"),
        (with_silo(noted=(uploaded(), revealed(SILOS, ["silo-c"]))), BOTH),
        # The kinds come from different silos: together they open one vector.
        (with_silo(noted=(uploaded(), revealed([], ["silo-c"]))), BOTH),
        (with_silo(audit=(adopted(b"x" * 32),)), "silo-b adopted"),
        (with_silo(audit=(adopted(), adopted(b"x" * 32))), "silo-b adopted"),
        (with_silo(audit=()), "silo-b adopted"),
        (replace(honest(), rounds=(counted("training"),)), "did not count an attempt"),
        (replace(honest(), opened=(opened(), opened(SILOS[:3]))), "taken off 2 sums"),
        (replace(honest(), opened=(opened(), opened(sum_sha256="fe"))), "taken off 2 sums"),
        (replace(honest(), opened=()), "taken off 0 sums"),
        (
            replace(honest(), attempts=(attempt(outcome=AggregationOutcome.SKIPPED),)),
            "taken off 1 sums; released: []",
        ),
        (replace(honest(), attempts=(attempt(), attempt())), "after 2 attempts"),
    ],
)
def test_each_harm_is_said(evidence, said):
    assert any(said in fault for fault in faults(evidence)), faults(evidence)


def test_who_may_be_missing_depends_on_the_kill():
    without = SimpleNamespace(**{**vars(RECORD), "survivors": SILOS[:3]})
    assert any("the record names" in fault for fault in faults(honest(), without))
    early = {"name": "silo.R0 advertise_keys.advertise_keys", "victim": "silo-d"}
    assert faults(honest(), without, **early) == []
    assert any("the record names" in fault for fault in faults(honest(), **early))


def test_a_training_that_was_cut_short_may_be_charged_again_and_a_finished_one_not():
    twice = with_silo(ledger=(TRAINED, TRAINED, SPENT, SIGNED))
    cut = next(cell for cell in REAL_TRAINING if cell.instant == "result_half")
    kept = next(cell for cell in REAL_TRAINING if cell.instant == "result_kept")
    assert faults(twice, cell=cut, victim="silo-b") == []
    assert any("2 trainings" in fault for fault in faults(twice, cell=kept, victim="silo-b"))


def test_a_death_that_did_not_happen_and_a_round_that_was_not_closed_are_faults():
    later = SimpleNamespace(**{**vars(RECORD), "round": 2})
    assert faults(honest(), later) == ["the round was not closed"]
    cell = CELLS[0]
    judge = Judge(
        SimpleNamespace(run_id="run", silos=SILOS, kills=()),
        honest(),
        SimpleNamespace(records=SimpleNamespace(list=lambda _run_id: (RECORD,))),
    )
    assert judge.faults(Kill(cell=cell, round=1, victim="coordinator")) == ["it did not happen"]
