"""Rounds in simulated time: whom they ask, who answers, what is decided by what."""
