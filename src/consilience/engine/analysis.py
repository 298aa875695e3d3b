"""Figures to tell hollow agreement from real: survival of points, novelty, facts that the answer keeps, independence of agents."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from consilience.domain.agents import Agent
from consilience.domain.messages import PLAIN_MARKS
from consilience.domain.report import FactsKept, Independence, SharedModel
from consilience.engine.similarity import set_jaccard
from consilience.engine.sources import same_form
from consilience.engine.work import Failure, Reply

MIN_RESTATED_OVERLAP = 0.7
"""Sentences with this Jaccard index or more say the same (protocols §0)."""


def sentences(text: str) -> list[str]:
    """Sentences of a text, without empty ones; English rules."""
    return [sentence for sentence in (s.strip() for s in _segmenter()(text)) if sentence]


_TOO_WIDE = re.compile("[^\\S\\x00-\\x7f]|[\ud800-\udfff]")


@cache
def _segmenter() -> Callable[[str], list[str]]:
    """The library's segmenter, on ASCII spaces: sentencex 1.0.32 panics on a capital, a multi-byte space and a full stop, and
    raises on lone surrogates."""
    from sentencex import segment

    def split(text: str) -> list[str]:
        ends = list(accumulate(map(len, segment("en", _TOO_WIDE.sub(" ", text)))))
        return [text[start:end] for start, end in pairwise([0, *ends])]

    return split


_PUNCTUATION = ".,;:!?\"'()[]“”‘’"


def bare_tokens(sentence: str) -> frozenset[str]:
    """Return its tokens, lower-cased and without punctuation at their ends."""
    return frozenset([bare_word for word in sentence.lower().split() if (bare_word := word.strip(_PUNCTUATION))])


class SentenceIndex:
    """An index to look up sentences that say the same, that is, whose tokens have a Jaccard index of `MIN_RESTATED_OVERLAP`.

    Such sentences share one of the few rarest tokens of the sentence looked up, so only those that have one are compared.
    """

    def __init__(self, sentences: Iterable[str]) -> None:
        self._token_sets = [bare_tokens(sentence) for sentence in sentences]
        self._by_token: dict[str, list[int]] = {}
        for n, tokens in enumerate(self._token_sets):
            for token in tokens:
                self._by_token.setdefault(token, []).append(n)
        self._empty = frozenset() in self._token_sets

    def contains(self, sentence: str) -> bool:
        """Return whether an indexed sentence says the same in nearly the same words."""
        tokens = bare_tokens(sentence)
        if not tokens:
            return self._empty
        rarest = sorted(tokens, key=lambda token: (len(self._by_token.get(token, ())), token))[: _probe_count(tokens)]
        candidates = {n for token in rarest for n in self._by_token.get(token, ())}
        return any(set_jaccard(tokens, self._token_sets[n]) >= MIN_RESTATED_OVERLAP for n in candidates)


def survival(points: Sequence[str], answer: str, statements: Iterable[str] = ()) -> float | None:
    """Share of points restated by a sentence of the answer or by one of its `statements`; None without points."""
    if not points:
        return None
    index = SentenceIndex([*sentences(answer), *statements])
    return sum(index.contains(point) for point in points) / len(points)


def novelty(answer: str, inputs: Iterable[str]) -> float | None:
    """Share of the answer's sentences that no sentence of the inputs resembles; None for an empty answer."""
    answer_sentences = sentences(answer)
    if not answer_sentences:
        return None
    unmatched = dict(enumerate(map(bare_tokens, answer_sentences)))
    index = _prefix_index(unmatched)
    for text in inputs:
        if not unmatched:
            break
        if _may_restate(text, unmatched.values()):
            for sentence in sentences(text):
                tokens = bare_tokens(sentence)
                candidates = {n for token in index.keys() & tokens for n in index[token]} if tokens else set(unmatched)
                for n in candidates & unmatched.keys():
                    if set_jaccard(unmatched[n], tokens) >= MIN_RESTATED_OVERLAP:
                        del unmatched[n]
    return len(unmatched) / len(answer_sentences)


def _prefix_index(sentences: Mapping[int, frozenset[str]]) -> dict[str, list[int]]:
    """Index sentences by enough of their tokens that a sentence which says the same has at least one of them.

    The longest tokens are used, since they are likely to be rare.
    """
    index: dict[str, list[int]] = {}
    for n, tokens in sentences.items():
        for token in sorted(tokens, key=lambda token: (-len(token), token))[: _probe_count(tokens)]:
            index.setdefault(token, []).append(n)
    return index


def _probe_count(tokens: frozenset[str]) -> int:
    """Return how many tokens of a sentence suffice to find every sentence that says the same."""
    return len(tokens) - math.ceil(MIN_RESTATED_OVERLAP * len(tokens) - 1e-9) + 1


def _may_restate(text: str, searched: Iterable[frozenset[str]]) -> bool:
    """Return False only if the text contains too few tokens of every wanted sentence. That takes a fifth of the time of splitting
    the text."""
    lowered = text.lower()
    return any(
        sum(token in lowered for token in tokens) >= MIN_RESTATED_OVERLAP * len(tokens) - 1e-9 for tokens in searched
    )


def effective_voices(n: int, rho: float) -> float:
    """n/(1+(n−1)ρ), ρ clamped to [0, 1]: the number of independent voices to which n correlated ones are equal."""
    rho = min(max(rho, 0.0), 1.0)
    return n / (1 + (n - 1) * rho)


def independence(agents: Sequence[Agent], rho: float | None = None) -> Independence:
    """Return which agents share a model; people share none. `effective` is None if some do and ρ is unknown."""
    by_model: dict[str, list[str]] = {}
    for agent in agents:
        by_model.setdefault(f"{agent.model} {agent.id}" if agent.is_person else agent.model, []).append(agent.id)
    shared_models = tuple(SharedModel(model=m, agents=tuple(ids)) for m, ids in by_model.items() if len(ids) > 1)
    if not shared_models:
        effective: float | None = float(len(agents))
    elif rho is None:
        effective = None
    else:
        effective = sum(effective_voices(len(ids), rho) for ids in by_model.values())
    return Independence(shared=shared_models, rho=rho, effective=effective)


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
