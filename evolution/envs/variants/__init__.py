"""Environments made different from silo to silo, stage by stage of what answers a search.

Start at ``stages.py``; which variants there are says ``spec.py``.
"""
