"""Whether silos can share one adapter: probes before training, patterns after it, remedies."""
