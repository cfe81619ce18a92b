"""Data that need no download: glyphs drawn here, scikit-learn's digits, Omniglot from its archives."""
