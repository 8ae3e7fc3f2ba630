"""What a model does, to look at."""
