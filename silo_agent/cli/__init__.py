"""The silo operator's command line. Nothing here imports a learning framework at start."""
