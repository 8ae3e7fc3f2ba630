"""Tokenizers of checkpoints: the same ids as transformers, from the same files."""
