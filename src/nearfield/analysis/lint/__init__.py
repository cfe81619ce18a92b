"""Known pitfalls ("sins") of a comparison, found in configurations and runs."""
