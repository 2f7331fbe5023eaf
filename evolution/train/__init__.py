"""The trainer: rows, loss, schedule, loop, and launched workers."""
