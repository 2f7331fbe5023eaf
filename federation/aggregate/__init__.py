"""How a sum becomes the next adapter: one small file for each method, in a literal registry."""
