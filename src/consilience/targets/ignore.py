"""Patterns of `.gitignore` files, matched as Git matches them on its way down from a directory (gitignore(5)).

A pattern is asked of one entry at a time. What is below an ignored directory is never asked, because the directory is not entered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
_BRACKET = re.compile(r"\[([!^]?)(\]?(?:\[:\w+:\]|\\.|[^\]\\])*)\]", re.DOTALL)
_STAR, _SLASH, _ANY_PATH = "*", "/", "**/"
_ITEM = re.compile(r"\[:(\w+):\]|\\?(.)", re.DOTALL)


@dataclass(frozen=True)
class Pattern:
    """One line of a `.gitignore`."""

    regex: re.Pattern[str]
    """Of the path, relative to the directory of the file; of the name alone if the pattern has no slash but at its end."""
    of_path: bool
    of_directories: bool
    """Whether it ends with a slash, so that it matches directories only."""
    ignores: bool
    """False for a pattern that begins with `!`."""

    def matches(self, path: str, is_directory: bool) -> bool:
        if self.of_directories and not is_directory:
            return False
        return self.regex.fullmatch(path if self.of_path else path.rpartition("/")[2]) is not None


@dataclass(frozen=True)
class Patterns:
    """Patterns in order; the last one that matches decides."""

    patterns: tuple[Pattern, ...]

    def verdict(self, path: str, *, is_directory: bool = False) -> bool | None:
        """Return whether the entry is ignored; None if no pattern matches it. Directories above it are not considered."""
        deciding = (pattern.ignores for pattern in reversed(self.patterns) if pattern.matches(path, is_directory))
        return next(deciding, None)

    def covers(self, path: str) -> bool:
        """Return whether a file, or a directory above it, is matched."""
        parts = path.split("/")
        parents = ("/".join(parts[:n]) for n in range(1, len(parts)))
        return any(self.verdict(directory, is_directory=True) for directory in parents) or bool(self.verdict(path))


MAX_PATTERN_CHARS = 4_096
"""Max length of a pattern: that of a path. Longer ones match nothing."""


def parse_patterns(lines: Sequence[str]) -> Patterns:
    """Return the patterns of the lines. A line that is not a valid pattern matches nothing, as in Git."""
    return Patterns(tuple(pattern for line in lines if (pattern := _parse(line)) is not None))


def _parse(line: str) -> Pattern | None:
    line = line.rstrip("\r\n")
    text = line.rstrip(" ")
    if text.endswith("\\") and text != line:
        text += " "
    if not text or text.startswith("#") or len(text) > MAX_PATTERN_CHARS:
        return None
    ignores = not text.startswith("!")
    text = text if ignores else text[1:]
    of_directories = text.endswith("/")
    text = text.removesuffix("/")
    of_path = "/" in text
    try:
        regex = re.compile(_translated(text.removeprefix("/") if of_path else text), re.DOTALL)
    except re.error:
        return None
    return Pattern(regex, of_path, of_directories, ignores) if text else None


def _translated(glob: str) -> str:
    """Return a glob as a regular expression.

    Between two stars of a name, or two `**` of a path, the first place that matches is as good as any later one. Atomic groups say
    so; otherwise a pattern with many stars would be tried in every combination.
    """
    tokens = list(_tokens(glob))
    regex, in_name, in_path = "", False, False
    for n, token in enumerate(tokens, 1):
        if in_name and token in (_STAR, _SLASH, _ANY_PATH):
            regex, in_name = regex + ")", False
        if token == _STAR:
            in_name = _STAR in takewhile(lambda later: later not in (_SLASH, _ANY_PATH), tokens[n:])
            regex += "(?>[^/]*?" if in_name else "[^/]*"
        elif token == _ANY_PATH:
            regex += ")" if in_path else ""
            in_path = _ANY_PATH in tokens[n:]
            regex += "(?>(?:[^/]*/)*?" if in_path else "(?:.*/)?"
        else:
            regex += token
    return regex


def _tokens(glob: str) -> Iterator[str]:
    """Yield the wildcards of a glob, and regular expressions for all else."""
    position = 0
    while position < len(glob):
        is_first = position == 0 or glob[position - 1] == "/"
        if glob.startswith("**/", position) and is_first:
            yield _ANY_PATH
            position += 3
        elif glob[position:] == "**" and is_first:
            yield ".+"
            position += 2
        elif glob[position] == "*":
            yield _STAR
            while glob[position : position + 1] == "*":
                position += 1
        elif glob[position] == "[":
            bracket = _BRACKET.match(glob, position)
            if bracket is None:
                raise re.error("an unclosed bracket matches nothing")
            yield _bracket(bracket)
            position = bracket.end()
        elif glob[position] == "\\":
            if position + 1 == len(glob):
                raise re.error("a backslash at the end matches nothing")
            yield re.escape(glob[position + 1])
            position += 2
        else:
            yield "[^/]" if glob[position] == "?" else re.escape(glob[position])
            position += 1


def _bracket(match: re.Match[str]) -> str:
    """Return a bracket expression of a glob as one of a regular expression; it never matches a slash."""
    content = _ITEM.sub(lambda item: _CLASSES.get(item[1], "") if item[1] else _escaped(item), match[2])
    negated = "^/" if match[1] else ""
    return f"(?!/)[{negated}{content}]"


def _escaped(item: re.Match[str]) -> str:
    return "-" if item[0] == "-" else re.escape(item[2])
