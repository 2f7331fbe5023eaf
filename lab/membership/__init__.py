"""Membership inference against trained adapters, by canary tasks."""
