"""``chorale-silo doctor``: is this silo well?"""
