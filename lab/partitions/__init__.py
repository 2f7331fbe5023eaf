"""Dealing a pool of tasks to silos with a heterogeneity that a dial sets: pure and seeded."""
