"""The integer grid, the discrete Gaussian, shares of the noise in a sum, figures that carry it."""
