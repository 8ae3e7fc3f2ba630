"""What seqloom can train a model for: everything particular to a task is in its folder."""
