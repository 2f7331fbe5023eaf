"""Whether a kill did harm: everything is compared between the parties, round by round.

Of a round:

    released   it is closed by one aggregated record, by its first attempt, with the vectors of
               exactly those whom the kill may not cost their place
    adopted    every silo, the killed one too, adopted that record and no other one
    debited    whoever began to send a vector had charged that attempt before, once, and sent the
               same vector only; and the coordinator counted the attempt as charged. A local
               training is charged once, and twice at most where the kill cut one short
    opened     only that attempt's masks were taken off, always with the same survivors and sum; of
               each silo the shares of one kind were revealed, by everybody together; survivors were
               signed for no other attempt
    proven     the transcript verifies from the root's key to the bytes of the published sum

Of the run:

    adapters   all silos' heads and files are the coordinator's newest record
    chains     all audit logs verify, against the heads that the other side keeps as well
    ledgers    every ledger opens with the daemon's own checks and holds the head that the
               coordinator knows
    secrets    no share is left in the database, no upload nor result on any disk
    renewals   each certificate is the one that the coordinator counts on

Covered: what the parties keep, and what the daemons noted before it left them. Not covered: bytes
on the wire.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from dp.errors import PrivacyError
from federation.audit.lines import check_chain
from federation.chain.record import AdapterRecord
from federation.errors import FederationError
from federation.transcript.transcript import verify_transcript
from lab.loopback import LoopbackFederation
from ops.audit_log import verify_log
from secagg.descriptor import AggregationId
from server.attempt.transcripts import build_transcript
from server.errors import CoordinatorError
from server.members.audit_heads import head_of_row
from server.pki.keys import read_public_key
from server.store import Store
from server.store.aggregations import AggregationOutcome
from server.store.rounds import RELEASE_PHASE
from silo_agent.books.audit import AUDIT_FILE
from silo_agent.books.audit_heads import kept_head
from silo_agent.books.ledger import open_ledger
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import SiloError
from silo_agent.identity.identity import Identity
from silo_agent.policy.document import Policy
from tests.system.chaos.drive import Drive, Kill
from tests.system.chaos.evidence import Evidence

Members = Callable[[np.ndarray], tuple[str, ...] | None]
FAILURES = (CoordinatorError, FederationError, PrivacyError, SiloError)


def published(loopback: LoopbackFederation, sha256: bytes) -> bytes:
    name = sha256.hex()
    content = (loopback.data_dir / "adapters" / name[:2] / name).read_bytes()
    assert hashlib.sha256(content).digest() == sha256
    return content


class Judge:
    """Judges one run."""

    def __init__(
        self,
        drive: Drive,
        evidence: Evidence,
        store: Store,
        *,
        dimension: int = 0,
        members: Members | None = None,
    ) -> None:
        self._drive = drive
        self._evidence = evidence
        self._store = store
        self._dimension = dimension
        self._members = members
        records: tuple[AdapterRecord, ...] = store.records.list(drive.run_id)
        self._records: Mapping[int, AdapterRecord] = {one.round: one for one in records}

    def faults(self, kill: Kill) -> list[str]:
        """What is wrong about a kill's round; empty if nothing is."""
        if not kill.fell_at:
            return ["it did not happen"]
        record = self._records.get(kill.round)
        if record is None:
            return ["the round was not closed"]
        return [
            *self._released(kill, record),
            *self._adopted(kill, record),
            *self._debited(kill),
            *self._trained(kill),
            *self._opened(kill),
            *self._proven(kill, record),
        ]

    def faults_of_run(self) -> list[str]:
        """What is wrong about the run as a whole."""
        return [
            *self._adapters(),
            *self._chains(),
            *self._ledgers(),
            *self._secrets(),
            *self._renewals(),
            *self._work(),
        ]

    # A round --------------------------------------------------------------------------------------

    def _released(self, kill: Kill, record: AdapterRecord) -> Iterator[str]:
        attempts = self._evidence.attempts_of(kill.round)
        if record.kind != "aggregated" or len(attempts) != 1:
            yield f"{record.kind} after {len(attempts)} attempts"
        everybody = set(self._drive.silos)
        may = {kill.victim} if kill.cell.in_sum is not True else set()
        # A silo that was killed in the round before may still be on its way back.
        may |= {one.victim for one in self._drive.kills if one.round == kill.round - 1}
        must_not = {kill.victim} if kill.cell.in_sum is False else set()
        if not everybody - may <= set(record.survivors) <= everybody - must_not:
            yield f"the record names {record.survivors}"
        if self._members is not None and record.kind == "aggregated":
            total = np.frombuffer(published(self._drive.loopback, record.sum_sha256), "<i4")
            inside = self._members(total[: self._dimension])
            if inside != record.survivors:
                yield f"the sum is of {inside}, the record names {record.survivors}"

    def _adopted(self, kill: Kill, record: AdapterRecord) -> Iterator[str]:
        expected = {(record.sha256.hex(), record.adapter_sha256.hex())}
        for silo_id, silo in self._evidence.silos.items():
            adopted = {
                (one["details"]["record_sha256"], one["details"]["adapter_sha256"])
                for one in silo.events("record_adopted", kill.round)
            }
            if adopted != expected:
                yield f"{silo_id} adopted {sorted(adopted)}"

    def _debited(self, kill: Kill) -> Iterator[str]:
        counted = {
            (row.run_id, row.round, row.step, 0, row.attempt)
            for row in self._evidence.rounds
            if RELEASE_PHASE in {time.phase for time in row.phases}
        }
        for row in self._evidence.attempts_of(kill.round):
            place = row.identity.fields()
            for silo_id, silo in self._evidence.silos.items():
                charged = silo.charged().count(place)
                sent = {
                    one["masked_sha256"]
                    for one in silo.witnessed("uploaded")
                    if tuple(one["identity"]) == place
                }
                kept = {
                    message.phase
                    for message in self._evidence.messages[row.identity]
                    if message.silo_id == silo_id
                }
                if len(sent) > 1 or charged > 1:
                    yield f"{silo_id} sent {len(sent)} vectors and was charged {charged} times"
                if (sent or silo_id in row.folded or RELEASE_PHASE in kept) and not charged:
                    yield f"{silo_id} sent a vector that was not charged"
                if (sent or charged) and place not in counted:
                    yield "the coordinator did not count an attempt that was charged"

    def _trained(self, kill: Kill) -> Iterator[str]:
        for silo_id, silo in self._evidence.silos.items():
            found = [one["round"] for one in silo.ledger if one["kind"] == "trained"]
            most = kill.cell.most_trainings if silo_id == kill.victim else 1
            if found.count(kill.round) > most:
                yield f"{silo_id} was charged for {found.count(kill.round)} trainings"

    def _opened(self, kill: Kill) -> Iterator[str]:
        attempts = self._evidence.attempts_of(kill.round)
        released = {
            row.identity.fields() for row in attempts if row.outcome is AggregationOutcome.RELEASED
        }
        opened = {
            (tuple(one["identity"]), tuple(one["survivors"]), one["sum_sha256"])
            for one in self._evidence.opened
            if one["identity"][1] == kill.round
        }
        if len(opened) != 1 or {one[0] for one in opened} != released:
            yield f"masks were taken off {len(opened)} sums; released: {sorted(released)}"
        kinds: dict[tuple[AggregationId | object, str], set[str]] = defaultdict(set)
        for silo_id, silo in self._evidence.silos.items():
            signed = {one for one in silo.charged("signed_r3") if one[1] == kill.round}
            if not signed <= released:
                yield f"{silo_id} signed survivors of {sorted(signed)}"
            for one in silo.witnessed("revealed"):
                place = tuple(one["identity"])
                if place[1] != kill.round:
                    continue
                if place not in released:
                    yield f"{silo_id} revealed shares of {place}"
                for kind in ("self_seed", "mask_key"):
                    for owner in one[kind]:
                        kinds[place, owner].add(kind)
        for (_, owner), found in kinds.items():
            if len(found) > 1:
                yield f"both kinds of shares of {owner} were revealed"
        for row in attempts:
            owners = {owner for place, owner in kinds if place == row.identity.fields()}
            if not set(row.survivors) <= owners:
                yield "a sum was opened without the shares of its survivors"

    def _proven(self, kill: Kill, record: AdapterRecord) -> Iterator[str]:
        loopback = self._drive.loopback
        try:
            transcript = build_transcript(self._store, self._drive.run_id, kill.round)
            total = published(loopback, record.sum_sha256) if record.sum_sha256 else None
            root_key = read_public_key(loopback.root_dir / "root.pub")
            passed = list(verify_transcript(transcript, root_key, total=total))
        except FAILURES as error:
            yield f"the transcript does not verify: {error}"
        else:
            if not passed:
                yield "the transcript proves nothing"

    # The run --------------------------------------------------------------------------------------

    def _adapters(self) -> Iterator[str]:
        newest = self._records[max(self._records)]
        content = published(self._drive.loopback, newest.adapter_sha256)
        for silo_id, silo in self._evidence.silos.items():
            if silo.head.get("record_sha256") != newest.sha256.hex():
                yield f"{silo_id} is at another record than the coordinator"
            file = silo.directory / "adapters" / newest.adapter_sha256.hex()
            if not file.is_file() or file.read_bytes() != content:
                yield f"{silo_id} holds another adapter than the coordinator"

    def _chains(self) -> Iterator[str]:
        loopback, kept = self._drive.loopback, {}
        for row in self._store.audit_heads.list():
            kept[row.silo_id] = head_of_row(row, loopback.federation).chain_head()
        log = loopback.data_dir / "audit.jsonl"
        try:
            check_chain(log.read_bytes())
            for silo_id, silo in self._evidence.silos.items():
                head = kept_head(silo.directory)
                if head is None or silo_id not in kept:
                    yield f"{silo_id} and the coordinator hold no head of each other"
                    continue
                verify_log(log, [head.chain_head()])
                verify_log(silo.directory / AUDIT_FILE, [kept[silo_id]])
        except FAILURES as error:
            yield f"an audit log does not verify: {error}"
        bad = {"audit_head_conflict", "ledger_rolled_back", "round_stalled", "attempt_aborted"}
        for one in self._evidence.audit:
            if one["event"] in bad:
                yield f"the coordinator noted {one['event']}: {one['details']}"
        for silo_id, silo in self._evidence.silos.items():
            if "audit_head_conflict" in {one["event"] for one in silo.audit}:
                yield f"{silo_id} noted a conflict of audit heads"

    def _ledgers(self) -> Iterator[str]:
        known = {row.bundle.silo_id: row.bundle for row in self._evidence.heads}
        for silo_id, silo in self._evidence.silos.items():
            config, bundle = SiloConfig.load(silo.directory), known[silo_id]
            try:
                policy, store = Policy.load(config.policy_file), LocalStore(silo.directory)
                with open_ledger(config, policy, store) as ledger:
                    ledger.require_contains(bundle.ledger_seq, bundle.ledger_sha256)
            except PrivacyError as error:
                yield f"the ledger of {silo_id}: {error}"
            trained = {one["round"] for one in silo.ledger if one["kind"] == "trained"}
            local = {one["round"] for one in silo.ledger if one.get("mode") == "record_local"}
            if not local <= trained:
                yield f"{silo_id} released rounds whose training was not charged"

    def _secrets(self) -> Iterator[str]:
        for identity, messages in self._evidence.messages.items():
            if any(message.sealed for message in messages):
                yield f"shares of {identity} are still in the database"
        left = [*self._drive.loopback.data_dir.joinpath("scratch").rglob("*")]
        for silo in self._evidence.silos.values():
            left += (silo.directory / "spool").glob("*")
            left += (silo.directory / "results").glob("*")
        files = [str(path) for path in left if path.is_file()]
        if files:
            yield f"uploads or results are left: {files}"

    def _work(self) -> Iterator[str]:
        for silo_id in self._drive.silos:
            log = self._drive.loopback.log(silo_id)
            for event in ("explore_failed", "local_work_failed"):
                if count := log.count(f'"event": "{event}"'):
                    yield f"{silo_id} said {event} {count} times"

    def _renewals(self) -> Iterator[str]:
        for silo_id, silo in self._evidence.silos.items():
            row, mine = self._evidence.members[silo_id], Identity.load(silo.directory)
            if row.certificate_sha256 != mine.certificate_sha256 or row.next_certificate_sha256:
                yield f"the coordinator counts on another certificate of {silo_id}"
