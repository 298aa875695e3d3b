"""Figures, names and quotations in first drafts, and which of them the answer keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from consilience.domain.report import FactsKept
from consilience.engine.sources import PLAIN_MARKS, same_form
from consilience.engine.work import Failure, Reply

NOUN_SHARE = 0.22
"""From this share of capitalised words inside sentences on, capitals mark nouns, as in German, not names."""

_WORD = re.compile(r"[^\W_]\w*(?:[.,:/'-]\w+)*")
_THOUSANDS = re.compile(r"(?<=\d)[,'\u00a0\u202f\u2009](?=\d{3}(?!\d))")
_QUOTED = re.compile(r'"([^"\n]+)"')
_SENTENCE_END = ".!?:;\n-*•)"


class _Word(NamedTuple):
    text: str
    begins: bool
    """Whether a sentence or list item begins with it."""


def facts_kept(
    first: Sequence[Reply[object] | Failure], answer: str | None, statements: Iterable[str]
) -> FactsKept | None:
    """Return which facts of the first replies are in the answer or its statements. A reply's points, if any, replace its text.

    None without an answer or facts, or if the answer is one of the first replies.
    """
    drafts = [reply for reply in first if isinstance(reply, Reply)]
    if not answer or any(reply.text == answer for reply in drafts):
        return None
    texts = [text for reply in drafts for text in (getattr(reply.value, "points", None) or [reply.text])]
    facts = list(_facts([_plain(text) for text in texts]))
    if not facts:
        return None
    kept = _plain("\n".join([answer, *statements]))
    whole, words = same_form(kept), {_form(word.text) for word in _words(kept)}
    lost = tuple(fact for fact in facts if not (same_form(fact) in whole if " " in fact else _form(fact) in words))
    return FactsKept(kept=len(facts) - len(lost), total=len(facts), lost=lost)


def _plain(text: str) -> str:
    """Return `text` with plain quotation marks and dashes, without thousands separators."""
    return _THOUSANDS.sub("", text).translate(PLAIN_MARKS)


def _form(word: str) -> str:
    """Return the normal form of a word. Numbers have a decimal point."""
    form = same_form(word)
    return form.replace(",", ".") if form[:1].isdigit() else form


def _words(text: str) -> Iterator[_Word]:
    for match in _WORD.finditer(text):
        before = text[max(match.start() - 8, 0) : match.start()].rstrip(" \t\"'(*_")
        yield _Word(match[0], begins=before[-1:] in _SENTENCE_END)


def _facts(texts: Sequence[str]) -> Iterator[str]:
    """Yield each fact once, as first written, without quotation marks."""
    words = [word for text in texts for word in _words(text)]
    inside = [word.text for word in words if not word.begins]
    has_names = sum(word[0].isupper() for word in inside) < NOUN_SHARE * len(inside)
    quoted = (match[1].strip() for text in texts for match in _QUOTED.finditer(text))
    facts = [words for words in quoted if " " in words]
    facts += [word.text for word in words if _is_fact(word, has_names=has_names)]
    by_form: dict[str, str] = {}
    for fact in facts:
        by_form.setdefault(_form(fact), fact)
    yield from by_form.values()


def _is_fact(word: _Word, *, has_names: bool) -> bool:
    text = word.text
    if "_" in text or any(character.isdigit() or character.isupper() for character in text[1:]) or text[0].isdigit():
        return True
    return has_names and len(text) > 1 and text[0].isupper() and not word.begins
