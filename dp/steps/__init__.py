"""Noisy gradient steps over protected units: sampling, per-unit gradients, clipping."""
