"""The run plan: its tables, what they ask of each other, and the wording of its problems."""
