"""Adapters and masked inputs by digest, in a directory or a bucket."""
