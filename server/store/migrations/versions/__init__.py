"""One file a change, named after its revision."""
