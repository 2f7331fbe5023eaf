"""Local evolution. ``evolver.py`` is the seam, ``registry.py`` the table of methods."""
