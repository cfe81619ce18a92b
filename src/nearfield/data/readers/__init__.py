"""Anybody's own data: arrays, tables, folders, datasets saved by other libraries."""
