"""A round's work in the silo, from the released adapter to the charged, noised share."""
