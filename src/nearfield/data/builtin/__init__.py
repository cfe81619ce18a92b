"""Datasets that need no download: glyphs, drawn on this machine, and digits, from scikit-learn; and Omniglot."""
