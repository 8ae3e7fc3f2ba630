"""Output layers: from hidden states to a vocabulary."""
