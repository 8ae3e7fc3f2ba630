"""The verb check: what is wrong in the data, and what training on it will cost."""
