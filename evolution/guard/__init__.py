"""Judging adapters on probes before they are served: real silos do it, and the lab's, alike.

Start at ``judging.py``. Nothing in here serves, contributes or tells anybody anything.
"""
