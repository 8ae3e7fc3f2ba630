"""Data made on the spot."""
