"""The site's own gate in front of its server: what was adopted is judged before it is served.

Start at ``guard.py``; how an adapter is judged stands in ``evolution/guard``. Nothing in here
changes what a silo contributes or what it adopts, and nothing is told to the coordinator.
"""
