"""Checkpoints of others: Hugging Face directories, read and written."""
