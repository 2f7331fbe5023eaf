"""Spans with an allow-list of attributes, and where they are sent."""
