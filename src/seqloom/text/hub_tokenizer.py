"""The old name of `hub/tokenizer.py`; it stays for one release."""

from seqloom.text.hub.tokenizer import HubTokenizer, read_hub_tokenizer

__all__ = ["HubTokenizer", "read_hub_tokenizer"]
