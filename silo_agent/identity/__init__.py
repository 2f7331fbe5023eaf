"""The silo's key, certificate and pins, and their renewal."""
