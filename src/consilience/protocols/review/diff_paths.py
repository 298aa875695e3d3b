"""Paths in the headers of a diff: quoted or not, with or without prefixes and dates."""

from __future__ import annotations

import re
from collections.abc import Collection

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb'\\([0-7]{1,3}|[abtnvfr"\\])')
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
_PREFIX = re.compile(r"([abciow12])/(?=.)")
"""The ends of a diff as Git names them, `diff.mnemonicPrefix` included."""
_DATE = re.compile(r"(\t.*| {2,}\d{4}-\d\d-\d\d .*)$")


def path_of(text: str, *, dated: bool = True) -> str:
    """Return the path in a header line, unquoted and without the date after it; "" for `/dev/null`."""
    quoted = _QUOTED.match(text)
    plain = _DATE.sub("", text) if dated else text
    path = _unquote(quoted[1]) if quoted else plain
    return "" if path == "/dev/null" else _printable(path)


def header_paths(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """Return old and new path of `diff --git` followed by `text`.

    None if they differ and hold spaces, so that the end of the first is unknown. Other lines of such a file have its names.
    """
    if quoted := _QUOTED.match(text):
        return end_paths(text[: quoted.end()], text[quoted.end() + 1 :], names)
    end = text.find(' "') if text.endswith('"') else text.find(" ") if text.count(" ") == 1 else -1
    if end > 0:
        return end_paths(text[:end], text[end + 1 :], names)
    half = len(text) // 2
    paths = end_paths(text[:half], text[half + 1 :], names)
    return paths if text[half : half + 1] == " " and paths[0] == paths[1] else None


def end_paths(old_text: str, new_text: str, names: Collection[str]) -> tuple[str, str]:
    """Return old and new path from the two ends of a header, without prefixes such as `a/` and `b/`; "" for `/dev/null`.

    `names` are the names of the documents, which decide whether the first directory is a prefix.
    """
    old, new = path_of(old_text), path_of(new_text)
    prefixes = [match and match[1] for match in map(_PREFIX.match, (old, new))]
    is_prefixed = prefixes[0] != prefixes[1] and all(
        prefix or not end for prefix, end in zip(prefixes, (old, new), strict=True)
    )
    path, rest = new or old, (new or old).partition("/")[2]
    if is_prefixed if (path in names) == (rest in names) else rest in names:
        return old.partition("/")[2], new.partition("/")[2]
    return old, new


def _unquote(text: str) -> str:
    """Decode the quotation of C, whose escapes are bytes of UTF-8."""

    def byte(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if escape[:1].isdigit():
            return bytes([int(escape, 8) & 255])
        return _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(byte, text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _printable(path: str) -> str:
    """Return a path as documents are named: what cannot be printed as `\\ufffd`."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in path)
