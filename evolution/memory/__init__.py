"""What the agent keeps of its own tries."""
