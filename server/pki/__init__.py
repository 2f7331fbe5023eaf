"""The coordinator's certificate authority, its keys, and whom it trusts."""
