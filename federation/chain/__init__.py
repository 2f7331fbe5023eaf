"""A run's provenance chain: tasks, records, sums, and does an update follow from its sum."""
