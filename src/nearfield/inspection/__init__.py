"""Pair weights made visible, gradients certified."""
