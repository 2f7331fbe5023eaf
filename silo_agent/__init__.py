"""silo_agent."""
