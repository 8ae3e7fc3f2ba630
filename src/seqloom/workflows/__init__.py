"""What the verbs do, and the Python API."""
