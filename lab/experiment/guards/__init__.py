"""Guards in simulated federations: what silos judge, how vetoes are summed, what comes back."""
