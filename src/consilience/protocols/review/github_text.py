"""Text of agents as Markdown that GitHub shows and does not act on.

GitHub notifies whom a comment mentions, links issues and commits that it names, closes issues, and loads images. Text that a
model wrote from an untrusted diff must cause none of it. GitHub looks for mentions and references after Markdown is parsed, so
escaping does not stop them; a character of no width inside them does.
"""

from __future__ import annotations

import re

NO_WIDTH = "&#8203;"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Control characters, characters of no width or that change the direction of text, and lone surrogates."""
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_MARKUP = re.compile(r"[\\`*_\[\]#|~$!]")
_COMMIT = re.compile(r"\b((?=[a-f]*\d)[0-9a-f]{7,64})\b", re.IGNORECASE)
"""What may be the hash of a commit."""
_REFERENCE = re.compile(r"@|#(?=\w)|(?<=[A-Za-z])-(?=\d)|:(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
"""A mention or address, an issue, `GH-12` or a key of a tracker, a URL: links fall apart behind each match."""


def visible(text: str) -> str:
    """Return `text` with line feeds as its only line ends, without characters that readers cannot see."""
    return _CONTROL.sub("", re.sub(r"\r\n?|[\u2028\u2029\x85\v\f]", "\n", text))


def prose(text: str, max_chars: int = 2_000) -> str:
    """Return `text` on one line, with its code spans and without other markup, mentions and links. Put something before it: at the
    start of a line some characters open lists or command bots."""
    line = " ".join(visible(text).split())
    if len(line) > max_chars:
        line = line[: max_chars - 1].rstrip() + "…"
    pieces = _CODE.split(line)
    return "".join(code_span(piece) if i % 2 else _plain(piece) for i, piece in enumerate(pieces))


def code_span(text: str) -> str:
    """Return `text` on one line as a code span, in which nothing is a mention or a link."""
    line = " ".join(visible(text).split()) or " "
    marks = "`" * (_longest_run(line, "`") + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{marks}{pad}{line}{pad}{marks}"


def code_block(text: str, language: str = "") -> str:
    """Return `text` as a fenced block that it cannot close."""
    shown = visible(text)
    fence = "`" * max(3, _longest_run(shown, "`") + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def _plain(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(
        code_span(piece) if i % 2 else _REFERENCE.sub(rf"\g<0>{NO_WIDTH}", _MARKUP.sub(r"\\\g<0>", piece))
        for i, piece in enumerate(_COMMIT.split(text))
    )


def _longest_run(text: str, mark: str) -> int:
    return max((len(run) for run in re.findall(re.escape(mark) + "+", text)), default=0)
