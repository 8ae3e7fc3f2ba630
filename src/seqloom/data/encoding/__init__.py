"""Examples to rows of ids."""
