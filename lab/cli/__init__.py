"""``chorale-lab``: base models and research runs."""
