"""Diagnoses of experiments: probes of a setting before it runs, patterns of what has run."""
