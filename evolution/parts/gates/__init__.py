"""Whether what was learned is taken."""
