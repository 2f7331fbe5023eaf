"""Rollouts by an OpenAI-compatible server."""
