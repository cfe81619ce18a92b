"""Exact places of matches, by counting in streamed tiles."""
