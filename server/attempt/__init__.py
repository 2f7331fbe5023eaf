"""One attempt at a round: the messages it relays, the journal that it is, and the sum."""
