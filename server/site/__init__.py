"""The coordinator's data directory: founding, backup, restoration, doctor."""
