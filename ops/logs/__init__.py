"""Structured logs whose events, fields and values come from an allow-list."""
