"""Environments that others serve or wrote: AgentGym, OpenEnv, Gymnasium."""
