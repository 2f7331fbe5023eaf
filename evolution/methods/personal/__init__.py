"""Personal adapters, which never leave the silo."""
