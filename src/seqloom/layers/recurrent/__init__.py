"""Recurrent layers: cells, the driver over time, and its compiled loops."""
