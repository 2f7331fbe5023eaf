"""What the coordinator publishes, verified: roster, plan, and the chain record by record."""
