"""How tries are played."""
