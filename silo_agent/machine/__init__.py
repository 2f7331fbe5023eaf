"""What this machine has, and how local work is fitted to it."""
