"""Adapters made ready for serving."""
