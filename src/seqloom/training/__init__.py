"""An objective, an optimizer, one loop, and checkpoints."""
