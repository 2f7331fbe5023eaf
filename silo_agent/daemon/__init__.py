"""The daemon: polling, admission of work, the guardian's gate, failures."""
