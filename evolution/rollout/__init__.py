"""Playing episodes: ``episodes.py`` runs them on any ``engine.RolloutEngine``."""
