"""The verb compare: several models on the same data and budget."""
