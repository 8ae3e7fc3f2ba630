"""Tasks of an encoder with a head: labels, tags, answers, choices."""
