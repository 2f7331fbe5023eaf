"""The grid, the discrete Gaussian, each silo's share of a sum's noise, and figures that carry it."""
