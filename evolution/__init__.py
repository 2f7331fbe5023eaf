"""The agent: environments, model, rollouts, memory, training and methods of self-evolution."""
