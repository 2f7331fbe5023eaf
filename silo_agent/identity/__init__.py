"""The silo's key, certificate and pins: joining, storing, renewing."""
