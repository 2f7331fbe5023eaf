"""Whole federations in one process, over a grid of settings and seeds: ``chorale-lab run``."""
