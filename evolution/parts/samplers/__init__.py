"""Which tasks a round tries."""
