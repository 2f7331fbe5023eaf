"""The run plan: its tables, what they ask of each other, how it is read, what it charges."""
