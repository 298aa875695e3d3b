"""How many tokens a text has, as far as is known before a model has read it."""

from __future__ import annotations

BYTES_PER_TOKEN = 3.5
"""Bytes of UTF-8 per token. Low for English text, so that estimates are rather too high."""


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text from its bytes, which works for any script that the tokenizer was made for."""
    return int(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN) + 1
