"""Chorale: the wire format that every party speaks."""
