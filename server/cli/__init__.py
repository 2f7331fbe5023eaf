"""The admin's and the coordinator's command lines. Nothing heavy is imported at start."""
