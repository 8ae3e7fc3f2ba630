"""Every bound of the server, in one place; `/info` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

from pydantic import Field

from seqloom.config import STRICT

Positive = Annotated[int, Field(ge=1, le=2**31, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


@final
@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What a request may ask for, how long it may take, and how many are answered at once."""

    __pydantic_config__ = STRICT
    rows: Positive = 16
    """Rows that a model decodes at once; each sample or hypothesis of a request is one."""
    queue: Positive = 64
    """Requests that may wait for a model. Another one is answered 429 with Retry-After."""
    batch_tokens: Positive = 4096
    """Tokens of several requests that a model reads at once."""
    prompt_tokens: Positive = 8192
    """Tokens of a prompt."""
    new_tokens: Positive = 4096
    """What max_tokens may be."""
    default_new_tokens: Positive = 256
    """What max_tokens is where a request does not say."""
    inputs: Positive = 256
    """Prompts, or texts, of one request."""
    explained_tokens: Positive = 256
    """Tokens of an input that is explained; no picture has room for more."""
    explained_numbers: Positive = 2**20
    """Numbers of an explanation."""
    traced_tokens: Positive = 2048
    """Tokens of an input whose attention is kept to be looked at."""
    trace_bytes: Positive = 2**28
    """Bytes of all attention that is kept; what was not looked at for the longest time leaves."""
    tree_tokens: Positive = 64
    """New tokens of a beam search that is shown as a tree."""
    stop_strings: Positive = 16
    """Strings that may end a text."""
    stop_length: Positive = 128
    """Characters of each of them."""
    top_logprobs: Positive = 20
    """Alternatives that are shown for a token."""
    body_bytes: Positive = 4 * 2**20
    """Bytes of a request's body."""
    header_bytes: Positive = 32 * 2**10
    """Bytes of its first line and headers."""
    connections: Positive = 512
    """Open connections. Another one is answered 503."""
    header_seconds: Seconds = 8.0
    """From the connection to the end of the headers."""
    body_seconds: Seconds = 8.0
    """From the headers to the end of the body."""
    request_seconds: Seconds = 600.0
    """From there to the end of the answer."""
    drain_seconds: Seconds = 30.0
    """Given to running requests once the server is told to stop."""
