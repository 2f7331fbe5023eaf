"""The names that a coordinator's certificate is for."""

HOSTS = ("localhost", "127.0.0.1")
