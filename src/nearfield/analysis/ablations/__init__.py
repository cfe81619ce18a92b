"""Outcomes of the papers' ablations: as numbers, as text, as a figure."""
