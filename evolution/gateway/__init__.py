"""Harnesses: agents that others wrote, each at its task with a model that records what it says."""
