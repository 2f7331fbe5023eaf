"""Adapters and published sums by digest, in a directory or a bucket."""
