"""Models of transformers with random weights, and ours with the same."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from seqloom.interop.checkpoint import read_checkpoint


def same_weights(peer: Any) -> Any:
    """Our model with the weights of one of transformers: it goes through a folder in the hub's format."""
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        return read_checkpoint(folder, torch.float32).model


def sharpened(peer: Any, factor: float = 8.0) -> Any:
    """With embeddings (and so tied outputs) scaled up: random weights leave the likeliest token hardly above
    the next."""
    with torch.no_grad():
        peer.get_input_embeddings().weight.mul_(factor)
    return peer.eval()
