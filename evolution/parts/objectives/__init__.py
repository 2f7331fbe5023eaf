"""The loss of a row, token by token."""
