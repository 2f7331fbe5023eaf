"""``chorale demo``: one federation of real processes, from nothing to an exported adapter."""
