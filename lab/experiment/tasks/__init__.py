"""Which tasks silos have: shards, partitions by a dial, demonstrations; what the base solves."""
