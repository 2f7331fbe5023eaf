"""What becomes a training row, with which weights."""
