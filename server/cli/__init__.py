"""The command lines ``chorale`` and ``chorale-coordinator``; nothing heavy is imported at start."""
