"""Layers of Transformers: blocks, attention, positions, caches."""
