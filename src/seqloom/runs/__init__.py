"""The run folder: its files, its settings, its card."""
