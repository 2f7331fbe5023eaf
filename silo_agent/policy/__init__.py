"""The site's own rules: what this silo takes part in."""
