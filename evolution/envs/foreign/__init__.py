"""Environments that others serve or wrote, each behind an adapter of the same kind."""
