"""Studies of models and decoding: exact search, degeneration, memory, rescoring."""
