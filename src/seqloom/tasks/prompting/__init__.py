"""Prompts and shots: a task that is said and shown in a prompt, with nothing trained."""
