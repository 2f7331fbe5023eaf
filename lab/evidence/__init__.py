"""What holds an experiment to account: how many seeds it needs, and what was registered of it."""
