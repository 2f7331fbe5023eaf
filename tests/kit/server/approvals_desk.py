"""The coordinator's collection of approvals, with members who sign them."""

from __future__ import annotations

import json

from secagg import suite
from secagg.roster import (
    approval_statement,
)
from server.audit import AuditLog
from server.members.roster_approvals import RosterApprovals
from server.store import Store
from tests.kit.secagg.secagg_samples import (
    ROOT_KEY,
    make_roster,
    signing_key,
)

ROOT = suite.verification_key(ROOT_KEY)
FIVE, SIX = make_roster(5, epoch=1), make_roster(6, epoch=2)


class Desk:
    def __init__(self, directory):
        self.store = Store(f"sqlite:///{directory / 'coordinator.db'}", create=True)
        self.audit = AuditLog(directory / "audit.jsonl")
        self.approvals = RosterApprovals(store=self.store, audit=self.audit, clock=lambda: 7.0)

    def approve(self, name, roster, previous=FIVE, **changes):
        signature = suite.sign(signing_key(name), approval_statement(previous, roster))
        fields = {"epoch": roster.epoch, "sha256": roster.sha256, "signature": signature, **changes}
        self.approvals.approve(name, **fields)

    def publish(self, signed):
        self.approvals.verified(signed, ROOT)
        self.store.rosters.publish(signed, at_unix_s=7)
        self.store.proposals.clear()

    def by(self):
        return [approval.silo_id for approval in self.approvals.current().approvals]

    def audited(self):
        records = (json.loads(line) for line in self.audit.tail(100))
        return [record["details"]["silo"] for record in records]
