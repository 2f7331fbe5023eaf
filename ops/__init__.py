"""What any long-running process needs: logs, tracing, probes, doctors, deployment files."""
