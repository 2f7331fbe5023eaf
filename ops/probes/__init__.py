"""The HTTP port for probes and metrics."""
