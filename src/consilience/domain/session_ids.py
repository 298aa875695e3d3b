"""Ids of sessions: how they are made, and which words of a command line are taken for one."""

from __future__ import annotations

import re
import secrets


def new_session_id(digits: int = 8) -> str:
    """Return a random id: `r` and so many hexadecimal digits, an even number."""
    return f"r{secrets.token_hex(digits // 2)}"


def is_session_word(word: str) -> bool:
    """Return whether a word is an id that was made here, or `last`. One that a user chose may be any word."""
    return re.fullmatch(r"r[0-9a-f]{6,}|last", word) is not None
