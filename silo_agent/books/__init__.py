"""What the silo remembers of itself: ledger, audit log, local store, peers' heads."""
