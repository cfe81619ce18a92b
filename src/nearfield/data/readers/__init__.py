"""Readers of user data: arrays, tables, folders of images, and Hugging Face datasets."""
