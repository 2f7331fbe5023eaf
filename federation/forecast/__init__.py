"""What a plan costs and protects, before it starts."""
