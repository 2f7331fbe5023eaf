"""Attacks on the privacy mechanisms, and the lower bounds on ε they show."""
