"""A coordinator to look at: real store, audit log and CA, with rows as a run leaves them.

Nothing is driven here; ``Driven`` stands where the conductor's driver does, and says what a test
wants to be going on.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy import insert

import federation.wire as federation_wire
from federation.chain.record import AdapterRecord
from federation.plan.read import read_plan
from ops.probes.server import PageRequest
from secagg.roster import Roster, RosterEntry, sign_roster
from server.audit import AuditEvent, AuditLog
from server.context import Liveness, RunContext, Signal
from server.figures import Phase, RoundFigures
from server.metrics import CoordinatorMetrics
from server.pki.authority import CertificateAuthority
from server.pki.trust import Trust
from server.states import RunState
from server.status_page.observer import Observer
from server.status_page.serve import status_page
from server.store import Store
from server.store.blobs.directory import BlobStore
from server.store.federation import FederationRow
from server.store.runs import RunRow
from server.store.schema import records, rounds
from tests.kit.federation.records import one_sum
from tests.kit.server.store_samples import silo_row
from tests.kit.server.world_plan import plan_toml

NOW = 1_800_000_000.0
KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
DAY_S = 86_400
PHASES_S = {
    "training": 190.0,
    "advertise_keys": 4.0,
    "share_keys": 6.0,
    "masked_input": 31.0,
    "consistency_check": 3.0,
    "unmask": 5.0,
    "aggregate": 9.0,
}


def digest(text):
    return hashlib.sha256(text.encode()).digest()


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


@dataclass
class Driven:
    """What the page asks of a driver."""

    row: RunRow
    current: RoundFigures
    waiting_for: tuple[str, ...] = ()
    cohorts: Any = field(default_factory=lambda: SimpleNamespace(kept_out=(), counted_on=SILOS))
    attempt: Any = None
    finished: list[RoundFigures] = field(default_factory=list)

    @property
    def plan(self):
        return read_plan(self.row.plan)


@dataclass
class Coordinator:
    """The parts of one coordinator that the page looks at."""

    directory: Path
    driver: Driven | None = None
    clock: Clock = field(default_factory=Clock)
    runbooks_url: str = ""

    def __post_init__(self):
        self.store = Store(f"sqlite:///{self.directory}/coordinator.db", create=True)
        self.audit = AuditLog(self.directory / "audit.jsonl", self.clock)
        self.audit.append(AuditEvent.COORDINATOR_STARTED)
        self.liveness = Liveness(self.clock)
        self.authority = CertificateAuthority.create("chorale")
        self.authority.save(self.directory / "pki")
        self.trust = Trust.load(self.directory / "pki")
        self.context = RunContext(
            store=self.store,
            blobs=BlobStore(self.directory / "blobs"),
            audit=self.audit,
            metrics=CoordinatorMetrics(),
            signing_key=KEY,
            liveness=self.liveness,
            changed=Signal(),
            scratch=self.directory / "scratch",
            clock=self.clock,
        )
        self.context.metrics.server_certificate_expiry.set(NOW + 300 * DAY_S)

    @property
    def authority_pem(self):
        return self.authority.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def observer(self):
        return Observer(
            context=self.context,
            trust=self.trust,
            data_dir=self.directory,
            shown=lambda: self.driver,
        )

    @property
    def pages(self):
        return status_page(
            context=self.context,
            trust=self.trust,
            data_dir=self.directory,
            shown=lambda: self.driver,
            runbooks_url=self.runbooks_url,
        )

    def get(self, path="/", **changes):
        """What a browser on this machine is answered."""
        return self.pages(request(path, **changes))

    def html(self, path="/"):
        return self.get(path).body.decode()

    def close(self):
        self.store.close()

    # Filling --------------------------------------------------------------------------------------

    def found(self, name="oncology", **terms):
        values = {"epsilon_cap": 8.0, **terms}
        self.store.federation.create(FederationRow(name=name, created_unix_s=int(NOW), **values))

    def enrol(self, silo_id, *, seen_s=3.0, certificate_s=22.0 * DAY_S, **changes):
        """A silo that was heard of ``seen_s`` ago; None for never."""
        self.store.silos.enrol(
            silo_row(
                silo_id,
                verification_key=digest(silo_id),
                certificate_sha256=digest(f"certificate {silo_id}"),
                certificate_expiry_unix_s=int(NOW + certificate_s),
                enrolled_unix_s=int(NOW - 8 * DAY_S),
                **changes,
            )
        )
        if seen_s is not None:
            self.clock.now = NOW - seen_s
            self.liveness.touch(silo_id)
            self.clock.now = NOW
        silo = self.store.silos.get(silo_id)
        self.liveness.bar(silo_id, barred=not silo.takes_part)

    def invite(self, silo_id, ends_s=20 * 3600):
        self.store.invites.create(
            secret=digest(silo_id),
            silo_id=silo_id,
            created_unix_s=int(NOW),
            expires_unix_s=int(NOW + ends_s),
        )

    def publish(self, *silo_ids, epoch=1):
        entries = tuple(
            RosterEntry(
                silo_id=name,
                spiffe_uri=f"spiffe://oncology/silo/{name}",
                verification_key=digest(name),
            )
            for name in sorted(silo_ids)
        )
        roster = Roster(
            federation="oncology",
            epoch=epoch,
            colluding=1,
            coordinator_key=KEY.public_key().public_bytes_raw(),
            entries=entries,
        )
        self.store.rosters.publish(sign_roster(roster, KEY), at_unix_s=int(NOW))

    def silent_since_start(self):
        """Let the coordinator have been up for a while: who did not call is silent."""
        self.liveness._started = NOW - DAY_S

    def start(
        self, run_id="maze-and-wordle-4f2a", *, state=RunState.RUNNING, since_s=9000.0,
        plan_name="demo", **plan,
    ):  # fmt: skip
        text = plan_toml(**{"mode": "silo", "noise": 4.0, "rounds": 20, **plan})
        text = text.replace(b"epsilon_cap = 1e9", b"epsilon_cap = 8.0")
        row = self.store.runs.create(
            run_id=run_id,
            name=plan_name,
            plan=text,
            plan_sha256=digest(run_id),
            submit_token=f"token of {run_id}",
            state=state,
            at_unix_s=NOW - since_s,
        )
        self.add_rows(run_id, [], [record(run_id, 0, "initial")])
        return row

    def add_rows(self, run_id, round_rows, record_rows):
        with self.store.transaction() as connection:
            if round_rows:
                connection.execute(insert(rounds), round_rows)
            if record_rows:
                connection.execute(insert(records), record_rows)

    def release(
        self, run_id, number, *, cohort, survivors=None, begin_s, outcome="aggregated", attempt=1,
        phases=PHASES_S, step=0, restored_round=None, slower=1.0, **figures,
    ):  # fmt: skip
        """A closed release that began ``begin_s`` ago; returns how long it took."""
        survivors = cohort if survivors is None else survivors
        at, times = NOW - begin_s, {}
        for phase, length_s in phases.items():
            times[phase] = at
            at += length_s * slower
        closed = RoundFigures(
            round=number,
            step=step,
            attempt=attempt,
            phase=Phase.FINISHED,
            timings_s={name: length_s * slower for name, length_s in phases.items()},
            cohort=tuple(cohort),
            survivors=tuple(survivors),
            outcome=outcome,
            adapter_sha256=digest(f"{run_id} {number} {step}"),
            restored_round=restored_round,
            **figures,
        )
        row = row_of(run_id, number, step, attempt, phase="finished", times=times)
        row |= {"outcome": outcome, "figures_json": closed.to_json()}
        link = record(
            run_id, number, outcome, step=step, survivors=survivors, restored_round=restored_round
        )
        self.add_rows(run_id, [row], [link])
        return at - (NOW - begin_s)

    def opened(self, run_id, number, *, attempt=1, begin_s, phases=("training",), step=0):
        """An attempt that is under way, or was lost in the last of these phases."""
        at, times = NOW - begin_s, {}
        for phase in phases:
            times[phase] = at
            at += PHASES_S[phase] / 4
        self.add_rows(
            run_id, [row_of(run_id, number, step, attempt, phase=phases[-1], times=times)], []
        )
        return times


def row_of(run_id, number, step, attempt, *, phase, times):
    return {
        "run_id": run_id, "round": number, "step": step, "attempt": attempt, "phase": phase,
        "phases_unix_s": json.dumps(times), "outcome": "", "figures_json": "",
    }  # fmt: skip


def record(run_id, number, kind, *, step=0, survivors=(), restored_round=None):
    first, summed = kind == "initial", kind == "aggregated"
    one = AdapterRecord(
        run_id=run_id,
        round=number,
        step=step,
        kind=kind,
        adapter_sha256=digest("kept") if kind == "skipped" else digest(f"{run_id} {number} {step}"),
        plan_sha256=digest(run_id),
        base_model_sha256=bytes(32),
        parent_sha256=b"" if first else digest("kept"),
        record_parent_sha256=b"" if first else digest("before"),
        parts=one_sum(survivors=tuple(sorted(survivors))) if summed else (),
        restored_round=restored_round,
    ).sign(KEY)
    return {
        "run_id": run_id, "round": number, "step": step, "adapter_sha256": one.adapter_sha256,
        "record": federation_wire.record_to_proto(one).SerializeToString(),
    }  # fmt: skip


SILOS = ("hospital-a", "hospital-b", "hospital-c", "hospital-d", "hospital-e")


def in_a_run(directory, *, waiting=("hospital-d",), silent=(), rounds=12, of=20):
    """Five silos in round 13 of 20, after a dropout, a lost attempt, a skip and a rollback."""
    made = Coordinator(directory)
    made.found()
    for silo_id in SILOS:
        made.enrol(silo_id, seen_s=400.0 if silo_id in silent else 2.0 + len(silo_id) % 3)
    made.publish(*SILOS)
    made.silent_since_start()
    row = made.start(rounds=of)
    begin_s = 300.0 * (rounds + 1)
    for number in range(1, rounds + 1):
        grown = 1 - math.exp(-number / 5)
        wobble = 0.02 * math.sin(number * 1.7)
        kwargs = {
            "success": {
                "maze": (0.22 + 0.5 * grown + wobble, 0.022),
                "wordle": (0.08 + 0.35 * grown - wobble, 0.03),
            },
            "agreement": 0.75 - 0.2 * grown + wobble, "agreement_error": 0.04,
            "heterogeneity": 0.004 + 0.006 * grown, "heterogeneity_error": 0.0008,
        }  # fmt: skip
        survivors = SILOS
        if number == 4:
            survivors = SILOS[:3] + SILOS[4:]
        if number == 6:
            made.opened(row.run_id, 6, begin_s=begin_s + 60, phases=("training", "advertise_keys"))
            begin_s += 5
            kwargs["attempt"] = 2
        if number == 8:
            kwargs = {"outcome": "skipped"}
            survivors = ()
        if number == 9:
            made.release(
                row.run_id, 9, cohort=(), begin_s=begin_s, outcome="rollback", phases={},
                restored_round=7,
            )  # fmt: skip
            continue
        if number == 11:
            kwargs["agreement"] = math.nan
        made.release(
            row.run_id, number, cohort=SILOS, survivors=survivors, begin_s=begin_s,
            slower=1 + 0.2 * math.sin(number), **kwargs,
        )  # fmt: skip
        begin_s -= 290
    times = made.opened(
        row.run_id, rounds + 1, begin_s=70.0,
        phases=("training", "advertise_keys", "share_keys", "masked_input"),
    )  # fmt: skip
    current = RoundFigures(
        round=rounds + 1,
        attempt=1,
        phase=Phase.MASKED_INPUT,
        phase_since_unix_s=times["masked_input"],
        deadline_unix_s=NOW + 240,
        cohort=SILOS,
    )
    made.driver = Driven(
        row=row,
        current=current,
        waiting_for=tuple(waiting),
        attempt=sum_of(SILOS),
    )
    return made


def sum_of(silos, *, threshold=4, n_min=3):
    """An open attempt, as far as the page looks at it."""
    descriptor = SimpleNamespace(threshold=threshold, n_min=n_min)
    return SimpleNamespace(active=silos, descriptor=SimpleNamespace(descriptor=descriptor))


def request(path="/", *, host="localhost:7445", peer="127.0.0.1", certificate=None, scheme="http"):
    return PageRequest(
        path=path,
        host_header=host,
        peer_address=peer,
        peer_certificate_der=certificate,
        scheme=scheme,
    )
