"""Figures, drawn by matplotlib, as SVG text."""
