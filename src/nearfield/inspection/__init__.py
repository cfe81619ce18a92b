"""Inspection of losses: pair weights and gradient checks."""
