"""The classical sins of a comparison, named in configurations and runs."""
