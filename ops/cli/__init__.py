"""The kit of every command line: how a command answers, and the commands that both sides have."""
