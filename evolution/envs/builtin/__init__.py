"""The environments that come with Chorale."""
