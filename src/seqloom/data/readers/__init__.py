"""Files of a task to its examples, each with file and line."""
