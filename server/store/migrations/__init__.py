"""Changes of the database's schema, applied in order when the coordinator starts."""
