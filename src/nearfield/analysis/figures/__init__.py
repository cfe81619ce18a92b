"""Figures as SVG text, without a plotting library."""
