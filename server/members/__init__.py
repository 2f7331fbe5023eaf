"""Silos and rosters: standing, invites, approvals, certificates, ledger and audit heads."""
