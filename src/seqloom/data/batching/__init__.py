"""Rows of ids to batches: stores, order, windows, splits."""
