"""What a release or a training costs in ε, and what noise leaves of the signal."""
