"""Scripts for maintaining the repository."""
