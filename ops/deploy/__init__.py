"""How a daemon is set up: what deploy commands write for it, what it asks of the kernel."""
