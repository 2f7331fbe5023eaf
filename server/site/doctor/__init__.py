"""``chorale doctor``: is this coordinator well?"""
