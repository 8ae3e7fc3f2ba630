"""Text to text: one task, or several at once, each example a text to read and a text to write"""
