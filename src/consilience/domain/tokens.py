"""How many tokens a text has, as far as is known before a model has read it."""

from __future__ import annotations

BYTES_PER_TOKEN = 3.5
"""Bytes of UTF-8 per token. Low for English text, so that estimates are rather too high."""
MIN_RATIO = 0.4
"""Tokens that a text has at least for each estimated one, in any script."""
MIN_LATIN_RATIO = 0.6


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text from its bytes, which works for any script that the tokenizer was made for."""
    return int(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN) + 1


def fewest_tokens(text: str) -> int:
    """Return the tokens that a text has at least: of Latin letters 60 % of the estimate, of others, as Russian, 40 %."""
    size = len(text.encode("utf-8", "surrogatepass"))
    latin = sum(character < "\x80" for character in text)
    return int((MIN_LATIN_RATIO * latin + MIN_RATIO * (size - latin)) / BYTES_PER_TOKEN)


def likely_tokens(text: str) -> int:
    """Estimate the tokens of a text that is to be cut only if it has to be: other scripts, as Russian or Chinese, count 70 % of
    their bytes."""
    size = len(text.encode("utf-8", "surrogatepass"))
    latin = sum(character < "\x80" for character in text)
    return int((latin + 0.7 * (size - latin)) / BYTES_PER_TOKEN)
