"""The published chain, verified record by record."""
