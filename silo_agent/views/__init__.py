"""What an operator is shown: runs, judgements, what would be sent."""
