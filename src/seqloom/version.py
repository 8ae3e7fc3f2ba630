"""The version of seqloom."""

VERSION = "0.1.0"
