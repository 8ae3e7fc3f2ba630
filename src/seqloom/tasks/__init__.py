"""What seqloom can train a model for: everything particular to a task stands in its folder."""
