"""One loop that turns any next-token model into text."""
