"""The daemon: its loop, the guardian's gate, what it says to the audit log, its process."""
