"""Tensors to tensors: no configuration, no vocabulary."""
