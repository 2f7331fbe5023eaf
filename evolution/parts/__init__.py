"""What recipes are made of: a room for each kind of part, and the seam that all of them share."""
