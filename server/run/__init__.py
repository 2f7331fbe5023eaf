"""A run from its first release to its last: cohorts, attempts, aggregation, budget."""
