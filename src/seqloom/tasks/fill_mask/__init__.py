"""Masked language models: trained on masks and pairs of sentences, asked for what is at a mask."""
