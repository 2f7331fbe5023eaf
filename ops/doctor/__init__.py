"""What a doctor's checks have in common: steps and findings, network, versions, dates."""
