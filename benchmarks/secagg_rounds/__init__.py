"""Rounds of secure aggregation under a clock, for the benchmarks of this folder."""
