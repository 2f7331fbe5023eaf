"""The integer grid, the discrete Gaussian, and each silo's share of the noise in a sum."""
