"""What a data set has paid: an append-only journal that refuses before a release."""
