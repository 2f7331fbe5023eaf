"""Invites, certificates' renewal and changes of the roster, as both sides compute them."""
