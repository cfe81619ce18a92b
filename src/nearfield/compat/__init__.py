"""Other libraries' names and call conventions, backed by this library: `pml` (pytorch-metric-learning 2) and
`sentence_transformers`. What each maps, and what it refuses and why: docs/bridge.md.
"""
